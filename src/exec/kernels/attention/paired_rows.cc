#include "exec/kernels/attention/paired_rows.h"

#include <ATen/ATen.h>
#include <ATen/native/CPUBlas.h>

#include <algorithm>
#include <cstring>

namespace perigee::exec::kernels {
namespace {

using at::BFloat16;
using at::Tensor;

constexpr int64_t kPairedRows = 64, kTile = 16;

bool has_instructions() {
  static const bool has = __builtin_cpu_supports("avx512bf16") > 0;
  return has;
}

const BFloat16* head_of(const Tensor& t, int64_t batch, int64_t head) {
  return t.const_data_ptr<BFloat16>() + batch * t.stride(0) + head * t.stride(1);
}

}  // namespace

PairedRows::PairedRows(const Tensor& t, bool wanted)
    : rows_(t.size(2)),
      size_(t.size(3)),
      serves_(wanted && t.scalar_type() == at::kBFloat16 && size_ % 2 == 0 && has_instructions()) {}

void PairedRows::pack(const Tensor& t, int64_t batch, int64_t head, float* room) {
  if (!serves_) return;
  auto* to = reinterpret_cast<uint32_t*>(room);
  const auto* from = head_of(t, batch, head);
  const int64_t step = t.stride(2), pairs = size_ / 2;
  for (int64_t tile = 0; tile < rows_; tile += kTile) {
    const int64_t end = std::min(tile + kTile, rows_);
    for (int64_t p = 0; p < pairs; ++p) {
      for (int64_t j = tile; j < end; ++j) {
        std::memcpy(to + p * rows_ + j, from + j * step + 2 * p, sizeof(uint32_t));
      }
    }
  }
  words_ = to;
}

bool PairedRows::multiply(const Left& left, int64_t first, int64_t count,
                          Matrix<float> product) const {
  if (!serves_ || left.rows != kPairedRows || count % kPairedRows != 0) return false;
  const int64_t step = left.tensor.stride(2);
  at::native::cpublas::brgemm(left.rows, count, size_, step, rows_, product.row, false,
                              head_of(left.tensor, left.batch, left.head) + left.first * step,
                              reinterpret_cast<const BFloat16*>(words_ + first), product.data);
  return true;
}

}  // namespace perigee::exec::kernels
