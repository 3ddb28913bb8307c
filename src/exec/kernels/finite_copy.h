// Looks for numbers that are not finite in the CPU's memory, also while it is copied.
#pragma once

#include <cstddef>
#include <span>

#include "graph/dtype.h"

namespace perigee::exec::kernels {

// Returns whether no number of the type is NaN or infinite; true for integers. Runs on the caller's
// threads of LibTorch.
bool are_finite(graph::DType dtype, std::span<const std::byte> numbers);

// Copies the numbers to `to`, in one pass over memory. Returns whether no number is NaN or
// infinite, as above.
bool copy_finite(graph::DType dtype, std::span<const std::byte> numbers, std::byte* to);

}  // namespace perigee::exec::kernels
