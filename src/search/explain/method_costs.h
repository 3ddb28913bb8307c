// The cost of each method of a strategy: the plan with it minus the plan without it. Both are
// compiled and simulated; built-in methods have no cost formula. A method that a user defines may
// have one.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "methods/method.h"

namespace perigee::search {

using methods::PlanCost;

struct MethodCost {
  std::string method;
  double seconds = 0;   // more a step with it; below 0: it saves time
  double bytes = 0;     // more on the rank that takes the most; below 0: it saves memory
  bool own = false;     // stated by the method itself
  std::string refused;  // why there is no plan without it; then there are no numbers
};

// Returns the cost that a method of the strategy states itself (methods::Method::cost).
using OwnCost = std::function<std::optional<PlanCost>(
    const nlohmann::json& use, const PlanCost& with, const std::optional<PlanCost>& without)>;

// Returns the costs of the methods of a strategy, as plain data, in its order; of `method` alone
// where it is not empty. parallel_mode has none: the ranks are given. `judge` returns the cost of a
// strategy's plan, or throws Error where there is none. Throws Error for a strategy that is
// no list of methods, has no plan, or lacks `method`.
std::vector<MethodCost> method_costs(const nlohmann::json& strategy,
                                     const std::function<PlanCost(const nlohmann::json&)>& judge,
                                     const std::string& method = "", const OwnCost& own = {});

}  // namespace perigee::search
