// Arithmetic on sizes. A graph of torch.export computes with the sizes of its inputs; capture knows
// them as numbers, so these ops are evaluated, and assertions about sizes are checked.
#pragma once

#include <string>

#include "capture/exported/program.h"

namespace perigee::exported {

// Returns the function for an archive's target ("_operator.mul", "torch.ops.aten.sym_size.int"), or
// nullptr for all others. A function throws Error for an assertion that does not hold and for
// arguments that are no numbers. Numbers follow Python: floor division, and the remainder has the
// divisor's sign.
NumberFunction find_number_function(const std::string& target);

}  // namespace perigee::exported
