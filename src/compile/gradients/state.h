// Values that outlive a step, and the buckets of gradients.
#pragma once

#include <string>
#include <vector>

#include "compile/draft/source.h"
#include "compile/gradients/gradients.h"

namespace perigee::compile {

// Groups the parameters into buckets and gives values that outlive a step their home and binding:
// weights, optimizer state, buffers, constants, scalars. `inputs`, in the order of the local
// graph's inputs, receives the values; data inputs have none yet.
Gradients make_state(Draft& draft, const Source& source, std::vector<ValueId>& inputs);

// Returns whether a parameter of the whole graph is trained. Then every stage of a pipeline has a
// step, also one that trains none: all take part in the norm and in what it decides.
bool any_stage_trains(const Source& source);

// Returns the parameter's optimizer group: 0 for the default one, k + 1 for StepSpec::groups[k].
int32_t group_of(const StepSpec& spec, const std::string& name);

// Returns the axes of several ranks that have this kind of placement, in the mesh's order.
mesh::AxisSet axes_where(const mesh::Mesh& mesh, const mesh::Placements& placements,
                         mesh::Placement::Kind kind);

// Returns how a Partial value is reduced, "sum" or "avg"; "sum" for one that is not Partial. Throws
// Error for others, naming `what`.
std::string reduce_name(const mesh::Mesh& mesh, const mesh::Placements& placements,
                        const std::string& what);

}  // namespace perigee::compile
