// Elementwise reduction of several ranks' buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "mesh/placement.h"

namespace perigee::exec {

// Writes to every buffer of `outputs` the reduction of `inputs`, in their order, for elements
// [begin, end). All have elements of `type`; bfloat16 and float16 are added up in float32, integers
// in a type that holds their sum. An average of integers or booleans is rounded towards 0; a sum of
// booleans is their disjunction. The largest or least of elements with a NaN is NaN. An output may
// be an input. `streams`: the results are too large for the caches; outputs that are not inputs bypass
// them. Throws Error for an element type that cannot be reduced.
void reduce_elements(at::ScalarType type, std::span<const std::byte* const> inputs,
                     std::span<std::byte* const> outputs, mesh::Reduce reduce, int64_t begin,
                     int64_t end, bool streams = false);

// The same for contiguous tensors of one element type.
void reduce_elements(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                     mesh::Reduce reduce, int64_t begin, int64_t end);

}  // namespace perigee::exec
