// Elementwise reduction of several ranks' buffers.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "mesh/placement.h"

namespace perigee::exec {

// Writes to every tensor of `outputs` the reduction of `inputs`, in their order, for elements
// [begin, end). All are contiguous with one element type; bfloat16 and float16 are added up in
// float32. An output may be an input. Throws Error for an element type that cannot be reduced.
void reduce_elements(std::span<const at::Tensor> inputs, std::span<const at::Tensor> outputs,
                     mesh::Reduce reduce, int64_t begin, int64_t end);

}  // namespace perigee::exec
