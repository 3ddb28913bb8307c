// The memory of parameters and buffers that a program borrows from another one's executor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>

#include "compile/program.h"

namespace perigee::exec {

class Executor;

// Returns the address in the lender's memory of each value that the program borrows; a view has that
// of its root. `own`: returns a value's tensor in the program's own frames. Throws Error where the
// lender is nullptr or does not hold a tensor in the same parts, type and layout.
std::map<int32_t, std::byte*> borrowed_addresses(
    const compile::Program& program, const Executor* lender,
    const std::function<at::Tensor(compile::ValueId)>& own);

}  // namespace perigee::exec
