// Products of bfloat16 rows by the CPU's bfloat16 instructions.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "exec/kernels/gemm.h"

namespace perigee::exec::kernels {

// The rows of a head of [b, heads, rows, size] as the right factor of products. The instructions
// multiply without rounding and add up in float32, as a product of float32 copies does, in 0.4
// times its time.
class PairedRows {
 public:
  // Rows of one head of another tensor of the same size of rows.
  struct Left {
    const at::Tensor& tensor;
    int64_t batch, head, first, rows;
  };

  // Serves bfloat16 where the CPU has the instructions, and `wanted`.
  PairedRows(const at::Tensor& t, bool wanted);

  // Returns the number of floats that `pack` writes; 0 where it does not serve.
  int64_t room() const { return serves_ ? rows_ * size_ / 2 : 0; }

  // Packs the rows of a head, whose elements are contiguous, into `room`.
  void pack(const at::Tensor& t, int64_t batch, int64_t head, float* room);

  // product [left.rows, count] = left, times rows [first, first + count), transposed. Returns
  // whether it computed it: of 64 rows by a multiple of 64, since each shape of a product is
  // compiled once.
  bool multiply(const Left& left, int64_t first, int64_t count, Matrix<float> product) const;

 private:
  int64_t rows_, size_;
  bool serves_;
  // [size / 2, rows]: word [p, j] is elements 2p and 2p + 1 of row j
  const uint32_t* words_ = nullptr;
};

}  // namespace perigee::exec::kernels
