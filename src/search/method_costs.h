// What each method of a strategy costs: the plan with it, less the plan without it. No built-in
// method has a formula of its own that could differ from what its plan does: programs are compiled
// and simulated both ways. One that a user defines may know better.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "methods/method.h"

namespace perigee::search {

using methods::Taken;

struct MethodCost {
  std::string method;
  double seconds = 0;   // more a step with it; below 0: it saves time
  double bytes = 0;     // more on the rank that takes the most; below 0: it saves memory
  bool own = false;     // the method said so itself
  std::string refused;  // why there is no plan without it; then there are no numbers
};

// Returns what a method, as it stands in the strategy, says that it costs (methods::Method::cost).
using OwnCost = std::function<std::optional<Taken>(const nlohmann::json& use, const Taken& with,
                                                   const std::optional<Taken>& without)>;

// Returns the costs of the methods of a strategy, as plain data, in its order; of `method` alone
// where it is not empty. parallel_mode has none: the ranks are given. `judge` returns what a
// strategy's plan takes, or throws Error where there is none. Throws Error for a strategy that is
// no list of methods, has no plan, or lacks `method`.
std::vector<MethodCost> method_costs(const nlohmann::json& strategy,
                                     const std::function<Taken(const nlohmann::json&)>& judge,
                                     const std::string& method = "", const OwnCost& own = {});

}  // namespace perigee::search
