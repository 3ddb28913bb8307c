// The contents of a Strategy, for the functions that make plans of it.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "lua/strategy.h"
#include "methods/method.h"
#include "train/plan/script_output.h"
#include "train/plan/strategy.h"

namespace perigee {

// With neither a script nor fixed methods the strategy is "auto".
struct Strategy::Impl {
  std::shared_ptr<train::ScriptOutput> output = std::make_shared<train::ScriptOutput>();
  std::shared_ptr<lua::StrategyScript> script;
  std::optional<methods::StrategySpec> fixed;
  // The methods and the request of the last plan that this strategy made.
  mutable methods::StrategySpec last_methods;
  mutable methods::PlanRequest last_request;
};

struct StrategyAccess {
  static bool is_auto(const Strategy& strategy) {
    return !strategy.impl_->script && !strategy.impl_->fixed;
  }
  static bool is_function(const Strategy& strategy) {
    return strategy.impl_->script && strategy.impl_->script->is_function();
  }
  // Returns the strategy's list of methods for this graph; runs the script's function where it has
  // one. `job`: JSON that the function receives.
  static methods::StrategySpec resolve(const Strategy& strategy, const nlohmann::json& job,
                                       const graph::Graph& graph, lua::Planner* planner) {
    const auto& impl = *strategy.impl_;
    return impl.script ? impl.script->resolve(job, graph, planner) : *impl.fixed;
  }
  static train::ScriptOutput* output(const Strategy& strategy) {
    return strategy.impl_->output.get();
  }
  static void remember(const Strategy& strategy, const methods::StrategySpec& methods,
                       const methods::PlanRequest& request) {
    strategy.impl_->last_methods = methods;
    strategy.impl_->last_request = request;
  }
  static const methods::StrategySpec& last_methods(const Strategy& strategy) {
    return strategy.impl_->last_methods;
  }
  static const methods::PlanRequest& last_request(const Strategy& strategy) {
    return strategy.impl_->last_request;
  }
};

}  // namespace perigee
