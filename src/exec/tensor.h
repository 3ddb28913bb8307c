// Conversions between the graph's types and LibTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "capture/device/dtype.h"
#include "graph/graph.h"

namespace perigee::exec {

using tracing::dtype_of;
using tracing::scalar_type;
using tracing::type_of;

// Returns "float32[8, 32]".
std::string to_string(const graph::TensorType& type);

// Returns the row-major strides of the shape, in elements.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape);

// Returns a tensor of the type with a copy of `bytes` (row-major). Throws Error when the number of
// bytes is not that of the type.
at::Tensor from_bytes(const graph::TensorType& type, const std::string& bytes);

}  // namespace perigee::exec
