// Ops that data (plans, replacements, archives of models) may call, by their schemas.
#pragma once

#include <ATen/core/function_schema.h>

namespace perigee::tracing {

// Returns the argument through which the op would do more than compute results from tensors and
// numbers: a tensor of the caller's to write to (out), or a text that is no option of an algorithm
// (plan/data_ops.h), such as the path of aten::from_file. Returns nullptr for an op without such an argument.
const c10::Argument* find_no_data(const c10::FunctionSchema& schema);

}  // namespace perigee::tracing
