// Products in half precision of sizes that are no multiple of 16 bytes, such as a vocabulary of
// 50257. cuBLAS's fast kernels read and write rows in whole pieces of 16 bytes; for other rows it
// takes kernels that are about six times slower. So the product is padded (as by Inductor's
// pad_mm), or cut into one of whole pieces and a small one, where rows at least begin at multiples
// of 16 bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace perigee::cuda {

// A product [rows, inner] x [inner, columns].
struct ProductSizes {
  int64_t rows = 0, inner = 0, columns = 0;
  bool operator==(const ProductSizes&) const = default;
};

// Returns whether a padded product of two-byte elements is faster than an unpadded one, with the
// copies of operands and result: it computes much for each element.
bool padding_pays(const ProductSizes& sizes);

// Returns the sizes at which all rows of a b are whole pieces of 16 bytes: a dim is padded where it
// is contiguous in an operand or in the result. Nothing where all rows and addresses are so already.
std::optional<ProductSizes> padded_sizes(const at::Tensor& a, const at::Tensor& b);

// Returns memory for a large matrix whose rows begin at multiples of 16 bytes. Between the rows of
// a matrix of two-byte elements may be gaps.
at::Tensor empty_rows(int64_t rows, int64_t columns, const at::TensorOptions& options);

// Returns whether cut_product takes the operands as they are: rows of both begin at multiples of 16
// bytes, and those of the result are whole pieces.
bool can_cut(const at::Tensor& a, const at::Tensor& b);

// Returns a b: a product of whole pieces, and products for the few rows or summands beyond them. So
// an element may be a sum of two rounded sums.
at::Tensor cut_product(const at::Tensor& a, const at::Tensor& b);

// Returns a b, a part of a product of the given sizes: between its rows may be gaps. Copies operands
// of other sizes, or whose rows begin between multiples of 16 bytes, into memory with zeros beyond
// them. Elements have two bytes.
at::Tensor padded_product(const at::Tensor& a, const at::Tensor& b, const ProductSizes& sizes);

}  // namespace perigee::cuda
