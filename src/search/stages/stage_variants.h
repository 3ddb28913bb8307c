// Strategies of stages in which a method makes a decision of the solver, the same for all stages.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace perigee::search {

struct StageVariant {
  std::string methods;  // in place of decisions: "zero2", "tensor_parallel, pipeline_parallel"
  nlohmann::json strategy;
};

// Returns the variants of a strategy that auto_sharding completes (stage_table.h: strategy_of):
// zero2 or fsdp in place of storage that it chooses, where a stage splits the batch; tensor_parallel
// in place of its shardings and of all its choices, where a stage splits ops; and both. The solver
// counts bytes, and not how far collectives overlap, so that a variant may be faster.
// `own_cuts`: stages may begin anywhere, and not at layers only. Where all submeshes are identical,
// each variant and the strategy itself also come with the cuts of pipeline_parallel.
std::vector<StageVariant> variants_of(const nlohmann::json& strategy, bool own_cuts);

}  // namespace perigee::search
