// The search for stages that a strategy was taken from, as decisions of its plan.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "methods/method.h"
#include "plan/plan.h"

namespace perigee::search {

// Results of plan_stages.
using StagesMade = std::span<const std::shared_ptr<const nlohmann::json>>;

// Returns the result whose submeshes and starts the strategy has, with auto_sharding where the
// result's strategy has it, the newest first; nullptr without one.
std::shared_ptr<const nlohmann::json> stages_chosen_by(const methods::StrategySpec& strategy,
                                                       StagesMade made);

// Plan::Decision::by of the rows of a table.
inline constexpr std::string_view kStageTable = "stage_table";

// Returns the decisions of the search: the layers and submeshes that it considered, the sequences
// that it simulated, and (by kStageTable) each row of its table, with its stage where it was chosen.
std::vector<plan::Decision> stage_decisions(const nlohmann::json& result);

// Returns the table of a result in the form of its file (stage_table.h: print).
nlohmann::json table_json(const nlohmann::json& result);

}  // namespace perigee::search
