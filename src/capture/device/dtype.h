// Conversions between LibTorch's element types and the graph's.
#pragma once

#include <ATen/core/Tensor.h>

#include "graph/graph.h"

namespace perigee::tracing {

// Throws Error for an element type that the graph has no name for.
graph::DType dtype_of(at::ScalarType type);

// Returns LibTorch's name of the element type; there is one for each.
at::ScalarType scalar_type(graph::DType dtype);

// Returns the tensor's dtype and shape.
graph::TensorType type_of(const at::Tensor& tensor);

}  // namespace perigee::tracing
