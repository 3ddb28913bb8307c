// Layouts of the factors of a product by the CPU's microkernels: those of bfloat16 multiply pairs of
// numbers, which a right factor has side by side.
#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>

namespace perigee::exec::kernels {

// Rows of a matrix; `step`: elements from one to the next.
template <class T>
struct MatrixRows {
  T* data;
  int64_t step;
  T* row(int64_t r) const { return data + r * step; }
};

struct MatrixSize {
  int64_t rows, columns;
};

// The sizes below are multiples of 16.

// to [rows / 2, columns]: a word has an element of row 2p in its low half, and below it in row
// 2p + 1 in its high one. Floats are rounded to nearest even.
void pair_rows(MatrixRows<const c10::BFloat16> from, MatrixSize size, MatrixRows<uint32_t> to);
void pair_rows(MatrixRows<const float> from, MatrixSize size, MatrixRows<uint32_t> to);

// The same of the transposed matrix: to [columns / 2, rows].
void pair_columns(MatrixRows<const c10::BFloat16> from, MatrixSize size, MatrixRows<uint32_t> to);

// to [columns, rows] = from [rows, columns] transposed. Rows of bfloat16 are a multiple of 32.
void transpose(MatrixRows<const c10::BFloat16> from, MatrixSize size, MatrixRows<c10::BFloat16> to);
void transpose(MatrixRows<const float> from, MatrixSize size, MatrixRows<float> to);
// Rounded to nearest even.
void transpose(MatrixRows<const float> from, MatrixSize size, MatrixRows<c10::BFloat16> to);

}  // namespace perigee::exec::kernels
