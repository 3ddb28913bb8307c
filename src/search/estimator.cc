#include "search/estimator.h"

#include <algorithm>
#include <string>

#include "base/infinity.h"
#include "search/cut/balanced_cut.h"

namespace perigee::search {
namespace {

// Programs may not fit where the model predicts more than this share of a rank's memory.
constexpr double kNear = 0.9;

}  // namespace

void Estimator::allow(double extra_bytes, double slack) {
  if (extra_bytes != extra_bytes_) models_.clear();
  extra_bytes_ = extra_bytes;
  slack_ = slack;
}

// For several parts only the need of the fastest cut is known, which suffices to report
// the missing memory.
bool Estimator::is_beyond(const Choice& choice, double needed_bytes) const {
  return (choice.chunks == 1 || extra_bytes_ > 0) &&
         needed_bytes * least_share(choice) > limits_.largest_bytes() + extra_bytes_;
}

const CostModel& Estimator::model_of(double times) {
  auto& model = models_[times];
  if (model) return *model;
  auto limits = limits_.by_kind();
  for (auto& bytes : limits) bytes = (bytes + extra_bytes_) / times;
  model = std::make_unique<CostModel>(
      folded_, tables_, costs_,
      Limits{std::move(limits), request_.pins.solver.value_or("auto"),
             places_of(folded_, request_.pins.starts), seconds_left_, request_.pins.balance});
  return *model;
}

const Layers* Estimator::tables_of(const Choice& choice) {
  std::string why;
  if (choice.submeshes.empty()) return tables_.on_ranks(choice, 0, request_.world, why);
  return tables_.find(choice_of_stage(choice, choice.submeshes.front()), why);
}

std::vector<Candidate> Estimator::candidates_of(const Choice& choice, const Layers& layers,
                                                double exact_below, double& needed_bytes) {
  std::vector<Candidate> list;
  double best = kInfinity;  // seconds, with enough memory
  double least_bytes = kInfinity;
  const auto add = [&](const Choice& one, const Layers& tables) {
    double own = 0;
    auto candidate = estimate(one, tables, exact_below, own);
    least_bytes = std::min(least_bytes, own);
    if (!candidate) return;
    const auto& estimate = candidate->estimate;
    const bool room = !candidate->choice.offload && estimate.bytes < kNear * estimate.limit;
    if (room) best = std::min(best, estimate.seconds);
    auto other = balanced(*candidate);
    list.push_back(std::move(*candidate));
    if (other) list.push_back(std::move(*other));
  };
  add(choice, layers);
  if (!choice.selective || choice.every != 1 || request_.pins.every) {
    needed_bytes = least_bytes;
    return list;
  }
  const auto& model = model_of(1);
  for (auto mixed = choice; const int64_t every : {4, 2}) {
    mixed.every = every;
    const auto* tables = every <= std::ssize(folded_.blocks) ? tables_of(mixed) : nullptr;
    if (!tables) continue;
    if (model.lower_bound(mixed, *tables) >= std::min(best, exact_below)) return list;
    add(mixed, *tables);
  }
  needed_bytes = least_bytes;
  return list;
}

// Returns nothing where no cut fits, with the bytes that the choice then needs.
std::optional<Candidate> Estimator::estimate(Choice choice, const Layers& layers,
                                             double exact_below, double& needed_bytes) {
  double least_bytes = kInfinity;
  auto estimate = fit(choice, layers, least_bytes, exact_below);
  if (!estimate && may_offload(choice, layers, least_bytes)) {
    choice.offload = true;
    estimate = fit(choice, layers, least_bytes, exact_below);
  }
  if (estimate && !estimate->recomputed_blocks.empty() && may_offload(choice, layers, kInfinity)) {
    // Memory is freed by recomputation or by the host: the faster of the two is kept.
    auto on_host = choice;
    on_host.offload = true;
    double unused = kInfinity;
    auto other = fit(on_host, layers, unused, exact_below);
    if (other && other->seconds < estimate->seconds) {
      other->lower_bound = std::min(other->lower_bound, estimate->lower_bound);
      choice = std::move(on_host);
      estimate = std::move(other);
    }
  }
  if (!estimate) {
    if (least_bytes > limits_.smallest_bytes() && least_bytes < learnt_.shortage.bytes) {
      learnt_.shortage.bytes = least_bytes;
      learnt_.shortage.choice = choice;
    }
    if (least_bytes < kInfinity) {
      needed_bytes = std::max(0.0, least_bytes - states_of(choice, layers)) /
                     learnt_.corrections.of_bytes(choice);
    }
    return std::nullopt;
  }
  learnt_.features.count(choice, estimate->seconds, false);
  Candidate candidate{.choice = choice, .strategy = {}, .estimate = std::move(*estimate)};
  for (int cut : candidate.estimate.cuts) {
    candidate.choice.starts.push_back(start_at(folded_, cut));
  }
  candidate.choice.recomputed_blocks = whole_blocks(choice, folded_.blocks,
                                                    candidate.estimate.cuts);
  for (int block : candidate.estimate.recomputed_blocks) {
    candidate.choice.recomputed_blocks.push_back(folded_.blocks[static_cast<size_t>(block)]);
  }
  candidate.choice.costs = candidate.estimate.costs;
  candidate.strategy = strategy_of(candidate.choice, request_.pins, tables_.row());
  return candidate;
}

// The model takes all blocks to cost the same. Where they do not, returns the candidate with stages
// of about equal arithmetic, which its programs then compare with the other; nothing where the cut
// is the same, pinned, or not of one part a stage.
std::optional<Candidate> Estimator::balanced(const Candidate& candidate) const {
  const auto& choice = candidate.choice;
  if (folded_.weights.empty() || choice.pipe < 2 || choice.chunks > 1 ||
      !choice.submeshes.empty() || !request_.pins.starts.empty() ||
      choice.pipe > std::ssize(folded_.blocks)) {
    return std::nullopt;
  }
  auto cuts = balanced_cut(folded_.weights, static_cast<int>(choice.pipe));
  const PartRules rules(folded_, cuts, request_.pins.balance);
  if (cuts == candidate.estimate.cuts || !rules.is_balanced(rules.pinned())) return std::nullopt;
  auto other = candidate;
  other.choice.starts.clear();
  for (int cut : cuts) other.choice.starts.push_back(start_at(folded_, cut));
  other.choice.recomputed_blocks = whole_blocks(choice, folded_.blocks, cuts);
  for (int block : other.estimate.recomputed_blocks) {
    other.choice.recomputed_blocks.push_back(folded_.blocks[static_cast<size_t>(block)]);
  }
  other.estimate.cuts = std::move(cuts);
  other.strategy = strategy_of(other.choice, request_.pins, tables_.row());
  return other;
}

// Returns the least expected share of the modelled memory that programs of the choice take, with
// the optimizer's state on the device or on the host.
double Estimator::least_share(Choice choice) const {
  const double share = learnt_.corrections.of_bytes(choice);
  choice.offload = true;
  return slack_ * std::min(share, learnt_.corrections.of_bytes(choice));
}

// Returns CostModel::estimate with the memory correction of the choice.
std::optional<Estimate> Estimator::fit(const Choice& choice, const Layers& layers,
                                       double& least_bytes, double exact_below) {
  const double factor = slack_ * learnt_.corrections.of_bytes(choice);
  auto estimate = model_of(factor).estimate(choice, layers, least_bytes, exact_below);
  if (estimate) estimate->limit *= factor;
  least_bytes *= factor / slack_;
  return estimate;
}

// Returns whether the choice may fit with its optimizer's state on the host. That is slower, so it
// is priced only where the choice does not fit without.
bool Estimator::may_offload(const Choice& choice, const Layers& layers, double least_bytes) const {
  const double states = states_of(choice, layers);
  return states > 0 && (least_bytes >= kInfinity ||
                        least_bytes - states <= limits_.smallest_bytes() + extra_bytes_);
}

// Returns the bytes of a rank's optimizer state, which the host can hold.
double Estimator::states_of(const Choice& choice, const Layers& layers) const {
  if (choice.offload || request_.pins.offload) return 0;
  const double states = layers.prologue.states + layers.epilogue.states +
                        layers.block.states * static_cast<double>(folded_.blocks.size());
  // With unequal submeshes some stage may store all of its parameters unsharded.
  const bool parts = choice.zero > 0 && choice.submeshes.empty();
  return parts ? states / static_cast<double>(choice.parts()) : states;
}

}  // namespace perigee::search
