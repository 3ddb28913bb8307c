#include "tests/search/certificate/whole_space.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

namespace perigee::search {
namespace {

void extend(Starts& starts, int begin, int blocks, int later_parts, int fewest_last,
            std::vector<Starts>& all) {
  if (later_parts == 0) {
    if (begin <= blocks - fewest_last) all.push_back(starts);
    return;
  }
  for (int next = begin + 1; next <= blocks; ++next) {
    starts.push_back(next);
    extend(starts, next, blocks, later_parts - 1, fewest_last, all);
    starts.pop_back();
  }
}

}  // namespace

std::vector<Starts> all_cuts(int blocks, int parts, int fewest_first, int fewest_last) {
  std::vector<Starts> all;
  if (parts == 1) return {{}};
  for (int first = fewest_first; first <= blocks; ++first) {
    Starts starts{first};
    extend(starts, first, blocks, parts - 2, fewest_last, all);
  }
  return all;
}

std::vector<Starts> all_cuts(const Choice& choice, const CostModel& model, const Layers& layers) {
  const auto& rules = model.rules();
  const bool several = choice.chunks > 1;
  return all_cuts(rules.blocks(), static_cast<int>(choice.pipe * choice.chunks),
                  several ? rules.fewest_first_blocks(layers) : 1,
                  several ? rules.fewest_last_blocks(layers) : 1);
}

WholeSpace::WholeSpace(ChainPlanner& planner, const cost::Cluster& on)
    : request_(planner.request),
      cluster_(on),
      costs_(on, planner.none),
      space_(request_, on),
      limits_(request_, on),
      folded_(fold(request_.graph(space_.captured()))),
      spec_(request_.spec(folded_.graph)),
      tables_(folded_, {.most = space_.most_samples(), .captured = space_.captured()}, spec_,
              request_.pins, false, costs_, planner.traces) {
  const auto& model = model_of({});
  const auto blocks = std::ssize(folded_.blocks);
  const auto never = [] { return false; };
  for (const auto& one : space_.combinations(tables_, model, blocks, never)) {
    add(one.choice, one.layers, one.bound);
  }
  const auto heterogeneous = space_.heterogeneous(tables_, model, blocks, never);
  for (const auto& one : heterogeneous.list) {
    const auto choice = heterogeneous.choice(one);
    add(choice, tables_of(choice), one.bound);
  }
}

void WholeSpace::add(const Choice& choice, const Layers* layers, double bound) {
  const auto with_host = [&](Choice one, const Layers* of, double least) {
    combinations_.push_back({one, of, least});
    if (request_.pins.offload) return;
    one.offload = true;
    combinations_.push_back({std::move(one), of, least});
  };
  with_host(choice, layers, bound);
  if (!choice.selective || choice.every != 1 || request_.pins.every) return;
  for (const int64_t every : {4, 2}) {
    auto mixed = choice;
    mixed.every = every;
    const auto* of = every <= std::ssize(folded_.blocks) ? tables_of(mixed) : nullptr;
    if (of) with_host(mixed, of, model_of({}).lower_bound(mixed, *of));
  }
}

const CostModel& WholeSpace::model_of(const Starts& starts) {
  auto& model = models_[starts];
  if (!model) {
    model = std::make_unique<CostModel>(folded_, tables_, costs_,
                                        Limits{limits_.by_kind(),
                                               request_.pins.solver.value_or("auto"),
                                               starts,
                                               {},
                                               request_.pins.balance});
  }
  return *model;
}

const Layers* WholeSpace::tables_of(const Choice& choice) {
  std::string why;
  if (choice.submeshes.empty()) return tables_.on_ranks(choice, 0, request_.world, why);
  return tables_.find(choice_of_stage(choice, choice.submeshes.front()), why);
}

void WholeSpace::each_cut(const Combination& of,
                          const std::function<void(const Starts&, const Estimate&)>& visit) {
  for (const auto& starts : all_cuts(of.choice, model_of({}), *of.layers)) {
    double needed = 0;
    const auto estimate = model_of(starts).estimate(of.choice, *of.layers, needed);
    if (estimate) visit(starts, *estimate);
  }
}

double WholeSpace::least_seconds() {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& one : combinations_) {
    each_cut(one, [&](const Starts&, const Estimate& estimate) {
      least = std::min(least, estimate.seconds);
    });
  }
  return least;
}

}  // namespace perigee::search
