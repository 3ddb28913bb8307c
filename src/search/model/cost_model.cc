#include "search/model/cost_model.h"

#include <cmath>
#include <utility>

#include "search/model/stage/priced_stages.h"

namespace perigee::search {

CostModel::CostModel(const Folded& folded, LayerTables& tables, simulate::OpCosts& costs,
                     Limits limits)
    : limits_(std::move(limits)),
      tables_(tables),
      cluster_(costs.cluster()),
      rules_(folded, limits_.starts, limits_.balance),
      prices_(folded, costs, rounds_),
      transfers_(tables, costs),
      bounds_({.folded = folded,
               .tables = tables,
               .cluster = cluster_,
               .limits = limits_,
               .rules = rules_,
               .prices = prices_,
               .transfers = transfers_}),
      timer_(bounds_, transfers_, cluster_, rounds_),
      cutter_({.folded = folded,
               .cluster = cluster_,
               .limits = limits_,
               .rules = rules_,
               .prices = prices_,
               .transfers = transfers_,
               .timer = timer_}),
      refiner_(rules_, transfers_, timer_) {}

double CostModel::lower_bound(const Choice& choice, const Layers& layers) const {
  return is_heterogeneous(choice, cluster_)
             ? bounds_.heterogeneous(choice, layers)
             : bounds_.homogeneous(choice, bounds_.whole(choice, layers));
}

double CostModel::lower_bound(const Choice& choice, const Layers& layers,
                              const WholeModel& whole) const {
  return is_heterogeneous(choice, cluster_) ? bounds_.heterogeneous(choice, layers)
                                            : bounds_.homogeneous(choice, whole);
}

std::optional<Estimate> CostModel::estimate(const Choice& choice, const Layers& layers,
                                            double& least_bytes, double exact_below) const {
  auto places = places_of_stages(choice, layers, tables_, cluster_, limits_);
  if (!places) return std::nullopt;
  PricedStages stages(choice, layers, std::move(*places), prices_, rules_.blocks());
  const auto cut = cutter_.cut(stages, exact_below);
  if (cut.parts.empty()) {
    if (std::isfinite(cut.least_bytes)) least_bytes = cut.least_bytes;
    return std::nullopt;
  }
  auto result = timer_.time(stages, cut.parts, exact_below);
  result.lower_bound = lower_bound(choice, layers);
  if (rules_.is_pinned() || cutter_.times_all_cuts(choice, result.seconds, exact_below)) {
    result.lower_bound = result.seconds;
  } else {
    refiner_.refine(stages, cut, !is_heterogeneous(choice, cluster_), exact_below, result);
  }
  least_bytes = result.bytes;
  if (result.bytes > result.limit) return std::nullopt;
  return result;
}

}  // namespace perigee::search
