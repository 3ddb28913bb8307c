// The tables of shape functions, one for each family of ops.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "capture/record/op.h"

namespace perigee::tracing {

using ShapeTable = std::vector<std::pair<std::string_view, Shape>>;

ShapeTable activation_shapes();  // and losses
ShapeTable index_shapes();       // and reductions
ShapeTable norm_shapes();
ShapeTable convolution_shapes();  // and im2col
ShapeTable pooling_shapes();      // and padding, sampling
ShapeTable order_shapes();        // sorting, searching, counting
ShapeTable linear_algebra_shapes();
ShapeTable fourier_shapes();
ShapeTable perigee_shapes();

// Shapes of several families: results shaped like an operand.
template <size_t... I>
std::vector<at::Tensor> like(const Values& values) {
  return {(values.tensor(I).defined() ? at::empty_like(values.tensor(I)) : at::Tensor())...};
}

}  // namespace perigee::tracing
