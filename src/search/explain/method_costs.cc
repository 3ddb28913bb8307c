#include "search/explain/method_costs.h"

#include <algorithm>

#include "base/fail.h"

namespace perigee::search {

using nlohmann::json;

namespace {

// Returns the name of a method, which is written as its name or as a list of name and config.
std::string name_of(const json& use) {
  if (use.is_string()) return use.get<std::string>();
  if (use.is_array() && !use.empty() && use[0].is_string()) return use[0].get<std::string>();
  fail("strategy", "a method is its name or a list of name and config, but got {}", use.dump());
}

}  // namespace

std::vector<MethodCost> method_costs(const json& strategy,
                                     const std::function<PlanCost(const json&)>& judge,
                                     const std::string& method, const OwnCost& own) {
  const bool wrapped = strategy.is_object() && strategy.contains("methods");
  const auto& uses = wrapped ? strategy["methods"] : strategy;
  if (!uses.is_array()) {
    fail("strategy", "costs require a list of methods, but got {}", strategy.dump());
  }
  std::vector<std::string> names;
  for (const auto& use : uses) names.push_back(name_of(use));
  if (!method.empty() && std::find(names.begin(), names.end(), method) == names.end()) {
    fail("strategy", "the strategy must have the method whose cost is asked for, but got \"{}\"{}",
         method, did_you_mean(method, names));
  }
  const auto with = judge(uses);
  std::vector<MethodCost> costs;
  for (size_t k = 0; k < names.size(); ++k) {
    if (names[k] == "parallel_mode" || (!method.empty() && names[k] != method)) continue;
    auto others = uses;
    others.erase(k);
    MethodCost cost{.method = names[k]};
    std::optional<PlanCost> without;
    try {
      without = judge(others);
      cost.seconds = with.seconds - without->seconds;
      cost.bytes = with.peak_bytes - without->peak_bytes;
    } catch (const Error& error) {
      cost.refused = error.what();
    }
    if (const auto said = own ? own(uses[k], with, without) : std::nullopt) {
      cost = {.method = names[k], .seconds = said->seconds, .bytes = said->peak_bytes, .own = true};
    }
    costs.push_back(std::move(cost));
  }
  return costs;
}

}  // namespace perigee::search
