// What zero1, zero2 and fsdp share: which parameters are stored in parts together, and over which
// axis.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "methods/method.h"
#include "plan/plan.h"

namespace perigee::methods {

// Returns the config keys that say how units are made; ATorch's names where it has one.
std::vector<Field> unit_fields();

// Appends the units of that level to the plan and, where they are cut over `zero`, shards the batch
// on it. Returns false where the axis has one rank: then there is nothing to cut, and a decision
// says so. Without match, classes or size a level-3 unit is a block of the model ("blocks.*"), or
// where it has none, 100,000 parameters; at levels 1 and 2 a bucket of gradients. Throws Error for
// an axis that the mesh lacks, and for a match or class that nothing has.
bool add_units(plan::Plan& plan, const Config& config, const Request& request, const Method& method,
               int level);

// Returns "12 units of up to 3.1 MiB over data (4 ranks)".
std::string describe_units(const plan::Plan& plan, const graph::Graph& graph);

// Logs once and notes that the config's key changes nothing, where it is there.
void note_no_effect(plan::Plan& plan, const Config& config, const Method& method,
                    const std::string& key, const std::string& why);

}  // namespace perigee::methods
