#include "solve/assign/assign.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <queue>
#include <utility>

#include "base/infinity.h"
#include "solve/assign/eliminate.h"
#include "solve/assign/improve.h"
#include "solve/assign/priced.h"
#include "solve/assign/simplify.h"
#include "solve/evaluate.h"

namespace perigee::solve {
namespace {

constexpr double kMostElimination = 3e8;  // table entries of an elimination
// Table entries of an elimination that is repeated for several prices.
constexpr double kMostPriced = 1e7;
constexpr double kMostWork = 1.5e6;  // table entries of one pass over the order
// Label limits per step: enough for most problems, then as many as memory allows.
constexpr size_t kLabelLimits[] = {1500, 20000, 200000, 1000000};
// How far below the best time an improvement must be to matter, relative; well inside the tolerance
// of a proof.
constexpr double kImprovement = 2e-10;
// Factor by which a repeated search extends its cutoff's distance from the bound.
constexpr double kFurther = 3;
constexpr double kNarrow = 1.0;  // share of a search's slack that its range's width may hide
// Additional time for a first solution after the time limit.
constexpr auto kGrace = std::chrono::milliseconds(100);
constexpr double kWorthwhile = 0.8;  // share of options left for which a smaller model pays

// A model restricted to the options that may matter in a range of thresholds, its tables, and the
// solutions found in it (as positions of its options).
struct Space {
  Space(AssignModel from, const std::vector<int>& order)
      : model(std::move(from)), sweep(model, order, kMostWork) {}
  AssignModel model;
  Sweep sweep;
  Pool pool;
};

using Keep = std::vector<std::vector<int>>;  // per variable, the positions to keep

std::shared_ptr<Space> restrict_space(const Space& space, const Keep& keep,
                                      const std::vector<int>& order) {
  auto result = std::make_shared<Space>(restrict_model(space.model, keep), order);
  for (const auto& solution : space.pool) {
    auto& mapped = result->pool.emplace_back();
    for (size_t v = 0; v < solution.size(); ++v) {
      const auto found = std::lower_bound(keep[v].begin(), keep[v].end(), solution[v]);
      if (found == keep[v].end() || *found != solution[v]) break;
      mapped.push_back(static_cast<int>(found - keep[v].begin()));
    }
    if (mapped.size() < solution.size()) result->pool.pop_back();
  }
  return result;
}

struct Node {
  size_t low = 0, high = 0;  // thresholds, inclusive
  double bound = 0;          // no choice in the range is faster
  double worth = 0;          // price of a unit of memory in its relaxation
  double slack = 0;          // distance of the next search's cutoff from the bound
  size_t effort = 0;         // index of the label limit to use
  std::shared_ptr<Space> space;
};

struct ByBound {
  bool operator()(const Node& a, const Node& b) const { return a.bound > b.bound; }
};

// Returns the largest sum of times that allowed choices can have.
int64_t most_time(const AssignModel& model) {
  int64_t total = 0;
  for (const auto& variable : model.variables) {
    int64_t most = 0;
    for (const auto& use : variable.uses) most = std::max(most, use.time);
    total += most;
  }
  for (const auto& pair : model.pairs) {
    int64_t most = 0;
    for (int64_t time : pair.time) most = std::max(most, time < kForbidden ? time : 0);
    total += most;
  }
  return total;
}

class AssignSearch {
 public:
  AssignSearch(AssignModel model, const AssignOptions& options)
      : options_(options),
        order_(choose_order(model)),
        root_(std::make_shared<Space>(std::move(model), order_)),
        thresholds_(root_->model.thresholds),
        most_time_(most_time(root_->model)) {}

  // Sets an allowed initial solution, as option positions.
  void offer(std::span<const int> solution) { visit(root_->model, solution); }
  void run();
  const std::optional<std::vector<int>>& best() const {
    return best_;
  }                                                    // original option per variable
  double lower_bound() const { return lower_bound_; }  // in time quanta
  bool finished() const { return finished_; }
  const AssignModel& model() const { return root_->model; }

 private:
  // Returns the most time that is still of interest, in quanta.
  double target() const {
    if (!best_) return static_cast<double>(most_time_) * (1 + 1e-9) + 0.5;
    const auto time = static_cast<double>(best_time_);
    return time - std::max(static_cast<double>(model().granule) * (1 - 1e-6),
                           std::max(kImprovement, options_.gap) * time);
  }
  bool past_deadline() const { return std::chrono::steady_clock::now() > options_.deadline; }
  ThresholdRange range(const Node& node) const {
    return {.low = thresholds_[node.low], .high = thresholds_[node.high]};
  }
  void visit(const AssignModel& model, std::span<const int> solution);
  void improve(const Space& space, const ThresholdRange& range);
  void find_any();
  Relaxed bound(Node& node, Space& space, const RelaxOptions& options);
  std::shared_ptr<Space> prune_options(double cutoff, const Relaxed& relaxed,
                                       const ThresholdRange& range,
                                       const std::shared_ptr<Space>& space, double worthwhile,
                                       bool& infeasible);
  void open_node(Node node);
  bool is_narrow(const Node& node) const;
  bool search(Node& node);
  void split(Node node, bool bounded);

  const AssignOptions options_;
  const std::vector<int> order_;
  const std::shared_ptr<Space> root_;
  const std::vector<int64_t> thresholds_;
  const int64_t most_time_;
  std::priority_queue<Node, std::vector<Node>, ByBound> open_;
  std::optional<std::vector<int>> best_;
  int64_t best_time_ = kForbidden;
  double lower_bound_ = 0;
  bool finished_ = true;
};

// Makes a solution the best so far if it is allowed and faster.
void AssignSearch::visit(const AssignModel& model, std::span<const int> solution) {
  const int64_t time = time_of(model, solution);
  if (time >= best_time_ || time >= kForbidden) return;
  if (model.limited && memory_of(model, solution) > model.capacity) return;
  best_time_ = time;
  best_.emplace(solution.size());
  for (size_t v = 0; v < solution.size(); ++v)
    (*best_)[v] = model.variables[v].options[solution[v]];
}

// Improves the solutions that a relaxation found.
void AssignSearch::improve(const Space& space, const ThresholdRange& range) {
  const int64_t before = best_time_;
  std::vector<int> found;
  cross(
      space.model, order_, range, space.pool, [&] { return best_time_; },
      [&](std::span<const int> solution) {
        const int64_t known = best_time_;
        visit(space.model, solution);
        if (best_time_ < known) found.assign(solution.begin(), solution.end());
      });
  if (best_time_ == before) return;
  descend(space.model, found);
  visit(space.model, found);
}

// Repairs a solution of the relaxation if none of them is allowed, so that an interrupted search
// has an answer and bounds can prune.
void AssignSearch::find_any() {
  const auto deadline = std::max(options_.deadline, std::chrono::steady_clock::now() + kGrace);
  for (auto from = root_->pool.rbegin(); from != root_->pool.rend() && !best_; ++from) {
    auto solution = *from;
    if (!repair(root_->model, solution, deadline)) continue;
    descend(root_->model, solution);
    visit(root_->model, solution);
  }
}

Relaxed AssignSearch::bound(Node& node, Space& space, const RelaxOptions& options) {
  auto relaxed = relax(space.model, space.sweep, range(node), options, space.pool,
                       [&](std::span<const int> solution) { visit(space.model, solution); });
  node.bound = std::max(node.bound, relaxed.bound);
  node.worth = relaxed.prices.backward + relaxed.prices.step;
  return relaxed;
}

// Returns the space without the options that no choice up to `cutoff` takes in the range, or the
// same space where more than the share `worthwhile` of them is left. Fills the tables of `space` at
// the relaxation's prices. Sets `infeasible` if no choice up to the cutoff exists.
std::shared_ptr<Space> AssignSearch::prune_options(double cutoff, const Relaxed& relaxed,
                                                   const ThresholdRange& range,
                                                   const std::shared_ptr<Space>& space,
                                                   double worthwhile, bool& infeasible) {
  double constant = 0;
  auto& model = space->model;
  space->sweep.backward(charged(model, range, relaxed.prices, constant));
  const auto through = space->sweep.through();
  Keep keep(through.size());
  size_t left = 0, all = 0;
  for (size_t v = 0; v < through.size(); ++v) {
    for (size_t j = 0; j < through[v].size(); ++j) {
      if (through[v][j] - constant <= cutoff) keep[v].push_back(static_cast<int>(j));
    }
    left += keep[v].size();
    all += through[v].size();
    infeasible = infeasible || keep[v].empty();
  }
  if (infeasible || static_cast<double>(left) > worthwhile * static_cast<double>(all)) return space;
  return restrict_space(*space, keep, order_);
}

// Bounds a node and queues it if its range may have a better choice.
void AssignSearch::open_node(Node node) {
  const auto relaxed = bound(node, *node.space, {.target = target()});
  if (node.bound > target()) return;
  bool infeasible = false;
  node.space = prune_options(target(), relaxed, range(node), node.space, kWorthwhile, infeasible);
  if (!infeasible) open_.push(std::move(node));
}

// Returns whether the error caused by the range's width is small compared with the search's slack,
// so that a label search may solve the range without a split.
bool AssignSearch::is_narrow(const Node& node) const {
  if (node.low == node.high) return true;
  const auto width = static_cast<double>(thresholds_[node.high] - thresholds_[node.low]);
  return node.worth * model().transient_count * width <= kNarrow * node.slack;
}

// Searches a range for choices up to a cutoff slightly above its bound, and raises the bound.
// The work grows steeply with the distance of the cutoff, so that a series of searches with
// growing cutoffs costs little more than one search at the best time. Returns whether the range
// must be split.
bool AssignSearch::search(Node& node) {
  const auto node_range = range(node);
  auto space = node.space;
  double cutoff = 0;
  Relaxed relaxed;
  for (int round = 0; round < 3; ++round) {
    relaxed = bound(node, *space, {.target = target(), .iterations = 200, .tolerance = 1e-3});
    if (space != node.space && node.bound > cutoff) {
      // The restricted space lacks options slower than its cutoff, which therefore limits
      // the bound.
      node.bound = std::nextafter(cutoff, kInfinity);
      node.slack *= kFurther;
      return false;
    }
    if (node.bound > target()) return false;
    if (round == 0) improve(*space, node_range);
    cutoff = std::min(target(), node.bound + node.slack);
    bool infeasible = false;
    auto smaller = prune_options(cutoff, relaxed, node_range, space, 0.999, infeasible);
    if (infeasible) {
      node.bound = std::nextafter(cutoff, kInfinity);
      node.slack *= kFurther;
      return false;
    }
    if (smaller == space) break;
    space = std::move(smaller);
  }
  double constant = 0;
  auto times = charged(space->model, node_range, relaxed.prices, constant);
  if (AssignModel ordered = space->model; break_symmetry(ordered, times)) {
    space = std::make_shared<Space>(std::move(ordered), order_);
  }
  space->sweep.backward(times);
  const auto outcome = search_labels(
      space->model, space->sweep, node_range, constant,
      {.target = cutoff, .most_labels = kLabelLimits[node.effort], .deadline = options_.deadline},
      [&](std::span<const int> solution) {
        visit(space->model, solution);
        return !space->model.limited || memory_of(space->model, solution) <= space->model.capacity;
      });
  if (outcome.timed_out) return false;
  // A better choice in this range has a dropped label, or was refused because the range of
  // thresholds is too wide, or is beyond the cutoff.
  const double beyond_cutoff = std::nextafter(cutoff, kInfinity);
  node.bound = std::max(node.bound, std::min({outcome.dropped, outcome.relaxed, beyond_cutoff}));
  if (outcome.dropped < beyond_cutoff) {
    node.slack /= kFurther;
    ++node.effort;
  } else if (outcome.relaxed > cutoff) {
    node.slack *= kFurther;
  }
  return outcome.relaxed <= cutoff && outcome.relaxed < outcome.dropped;
}

void AssignSearch::split(Node node, bool bounded) {
  const size_t middle = (node.low + node.high) / 2;
  for (const bool upper : {false, true}) {
    Node child = node;
    (upper ? child.low : child.high) = middle + upper;
    if (bounded) {
      open_.push(std::move(child));
    } else {
      open_node(std::move(child));
    }
  }
}

void AssignSearch::run() {
  const AssignModel& model = root_->model;
  size_t count = thresholds_.size();
  while (count > 1 && model.transient_count * thresholds_[count - 1] > model.capacity) --count;
  Node root{
      .low = 0, .high = model.limited && model.transient_count > 0 ? count - 1 : 0, .space = root_};
  bound(root, *root_, {.target = target()});
  improve(*root_, range(root));
  if (!best_) find_any();
  root.slack = std::max(best_ ? (target() - root.bound) / 64 : std::abs(root.bound) / 1024,
                        static_cast<double>(model.granule));
  open_node(root);
  double given_up = kInfinity;  // lower bound of the ranges that the last label limit did not solve
  while (!open_.empty() && open_.top().bound <= target() && !(options_.any && best_)) {
    if (past_deadline()) {
      finished_ = false;
      break;
    }
    Node node = open_.top();
    open_.pop();
    if (!is_narrow(node)) {
      split(std::move(node), false);
      continue;
    }
    const bool wide = search(node);
    if (node.bound > target()) continue;
    if (wide && node.low < node.high) {
      split(std::move(node), true);
    } else if (node.effort < std::size(kLabelLimits)) {
      open_.push(std::move(node));
    } else {
      given_up = std::min(given_up, node.bound);
    }
  }
  const double settled = options_.gap > 0 ? target() : kInfinity;
  lower_bound_ = std::min({given_up, settled, open_.empty() ? kInfinity : open_.top().bound});
  if (given_up <= target()) finished_ = false;
}

}  // namespace

namespace {

// The solution of a model: the original option per variable, and a bound in time quanta.
struct Answer {
  std::optional<std::vector<int>> best;
  double lower_bound = 0;
  bool finished = true;
};

// Returns the original option per variable.
std::vector<int> original(const AssignModel& model, std::span<const int> solution) {
  std::vector<int> options;
  for (size_t v = 0; v < solution.size(); ++v) {
    options.push_back(model.variables[v].options[solution[v]]);
  }
  return options;
}

Answer answer(const AssignModel& model, const AssignOptions& options) {
  Priced priced;
  if (!model.limited) {
    auto found = eliminate(model, std::min(kMostElimination, options.most_work));
    const bool limited_work = std::isfinite(options.most_work);
    if (found.finished || (limited_work && found.best)) {
      return {found.best ? std::optional(original(model, *found.best)) : std::nullopt,
              found.lower_bound, found.finished};
    }
    priced = {.best = std::move(found.best), .lower_bound = found.lower_bound};
  } else if (!options.any) {
    priced = price_memory(model, kMostPriced, options.deadline);
    if (priced.best) {
      const auto time = static_cast<double>(time_of(model, *priced.best));
      if (time - priced.lower_bound <= std::max(kImprovement, options.gap) * time) {
        return {original(model, *priced.best), priced.lower_bound, true};
      }
    }
  }
  AssignSearch search(model, options);
  if (priced.best) search.offer(*priced.best);
  search.run();
  return {search.best(), std::max(search.lower_bound(), priced.lower_bound), search.finished()};
}

}  // namespace

AssignOutcome assign_by_labels(const AssignProblem& problem, const AssignOptions& options) {
  AssignOutcome outcome;
  double scale = kInfinity;
  // Times far above the best one would reduce the quantum's precision: once a choice is known, they
  // are forbidden.
  for (int round = 0; round < 4; ++round) {
    AssignModel model = make_model(problem, {.time_scale = scale, .ignore_time = options.any});
    const double rounding = static_cast<double>(problem.ops.size() + problem.edges.size()) *
                            model.time_quantum;
    if (std::any_of(model.variables.begin(), model.variables.end(),
                    [](const auto& v) { return v.size() == 0; })) {
      if (!outcome.choice) outcome.lower_bound = kInfinity;
      return outcome;
    }
    model = without_dominated(model);
    const auto found = answer(model, options);
    outcome.finished = found.finished;
    const double bound = std::max(0.0, found.lower_bound * model.time_quantum);
    if (!found.best) {
      outcome.lower_bound = std::isinf(scale) || !outcome.choice ? bound : std::min(bound, scale);
      return outcome;
    }
    std::vector<int> choice(problem.ops.size());
    for (size_t v = 0; v < model.variables.size(); ++v) {
      for (int i : model.variables[v].ops) choice[i] = (*found.best)[v];
    }
    const double time = evaluate(problem, choice).time;
    outcome.choice = std::move(choice);
    const bool precise = model.exact_time || rounding <= kImprovement * time;
    outcome.lower_bound = found.finished && options.gap == 0
                              ? (precise ? time : std::max(0.0, bound - rounding))
                              : std::min(time, bound);
    if (precise || !found.finished || options.any || time == 0) break;
    scale = time * (1 + 1e-6);
  }
  return outcome;
}

}  // namespace perigee::solve
