// Strides: the views that need no copy, and the layouts of ops' results.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace perigee::compile {

// Returns the row-major strides, in elements.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape);

// Returns true when the elements lie in row-major order without gaps (strides of size-1 dims
// do not matter).
bool is_contiguous(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Returns true when no two elements share memory and the elements fill it without gaps, in any
// order of dims.
bool is_dense(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// Returns the number of elements in memory from the first to the last one; 0 for an empty tensor.
int64_t extent(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides);

// A view's layout within its operand.
struct View {
  std::vector<int64_t> strides;
  int64_t offset = 0;  // in elements of the result's type, from the operand's first
};

// Returns the strides of a view of shape `to` with the same elements in row-major order, or nothing
// where the reshape needs a copy. The rule of LibTorch's computeStride.
std::optional<std::vector<int64_t>> reshape_strides(const std::vector<int64_t>& from,
                                                    const std::vector<int64_t>& strides,
                                                    const std::vector<int64_t>& to);

// Returns the layout of the node's result `result` as a view of its operand `self`, which has these
// strides. Throws Error for a view op that this function does not support. Not for
// perigee::reshape, which may copy.
View view_of_operand(const graph::Node& node, int32_t result, const graph::TensorType& self,
                     const std::vector<int64_t>& strides, const graph::TensorType& type);

// Shape and strides of a pointwise op's tensor operand.
struct Operand {
  const std::vector<int64_t>* shape;
  const std::vector<int64_t>* strides;
};

// Returns the strides of a pointwise op's result by TensorIterator's rule, which keeps the
// operands' order of dims in memory.
std::vector<int64_t> pointwise_strides(const std::vector<int64_t>& shape,
                                       const std::vector<Operand>& operands);

}  // namespace perigee::compile
