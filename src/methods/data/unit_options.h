// Units of zero1, zero2 and fsdp: which parameters are stored in parts together, and
// over which axes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "methods/field_table.h"
#include "plan/plan.h"

namespace perigee::methods {

// Options for the division of parameters into units. Names are ATorch's where it has the option.
struct UnitConfig {
  std::optional<mesh::AxisSet> axis;
  Names match, wrap_classes;
  std::optional<int64_t> min_parameters;
  bool trainable_outmost = false;
  Names ignored, ignored_classes;
  std::optional<bool> one_copy;  // zero1 and zero2
};

// Returns the fields of UnitConfig.
const FieldTable<UnitConfig>& unit_fields();

// Appends the units of that level to the plan and, where they are cut over `zero`, shards the batch
// on it. Returns false, and records that as a decision, where the axes have one rank or no
// parameter is left. Without match, classes or size a level-3 unit is a block of the model
// ("blocks.*"), or 100,000 parameters where it has no blocks; at levels 1 and 2 a bucket of
// gradients. Throws Error for an axis that the mesh lacks, and for a
// pattern or class that matches nothing.
bool add_units(plan::Plan& plan, const UnitConfig& given, const PlanRequest& request,
               const Method& method, int level);

// Returns "12 units of up to 3.1 MiB over data (4 ranks)".
std::string describe_units(const plan::Plan& plan, const graph::Graph& graph);

// Logs, and records as a decision, each field of the config with ConfigField::no_effect.
void note_no_effects(plan::Plan& plan, const Config& config, const Method& method);

}  // namespace perigee::methods
