// Strides: which views exist without a copy, and how the results of ops lie.
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

// A view: how it lies within its operand.
struct View {
  std::vector<int64_t> strides;
  int64_t offset = 0;  // in elements of the result's type, from the operand's first
};

// Returns the strides with which `to` shows the same elements in row-major order, or nothing where
// that needs a copy. The rule of LibTorch's computeStride.
std::optional<std::vector<int64_t>> reshape_strides(const std::vector<int64_t>& from,
                                                    const std::vector<int64_t>& strides,
                                                    const std::vector<int64_t>& to);

// Returns the view that result `result` of the node is of its operand (`self`, of that shape and
// strides). Throws Error for an op that graph::is_view knows and this does not. Not for
// perigee::reshape, which may copy.
View view_of_operand(const graph::Node& node, int32_t result, const graph::TensorType& self,
                     const std::vector<int64_t>& strides, const graph::TensorType& type);

// A tensor operand as a pointwise op sees it.
struct Operand {
  const std::vector<int64_t>* shape;
  const std::vector<int64_t>* strides;
};

// Returns how the result of a pointwise op lies: TensorIterator's rule, which keeps the operands'
// order of dims.
std::vector<int64_t> pointwise_strides(const std::vector<int64_t>& shape,
                                       const std::vector<Operand>& operands);

}  // namespace perigee::compile
