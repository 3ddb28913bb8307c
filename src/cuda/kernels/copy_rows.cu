#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

constexpr int kEach = 8;  // loads of a thread in flight

// One block per row; Unit is one element, or 16 bytes of them.
template <class Unit>
__global__ void copy(const Unit* from, int64_t stride, Rows shape, Unit* to, Rows wanted) {
  for (int64_t row = blockIdx.x; row < wanted.rows; row += gridDim.x) {
    const Unit* x = from + row * stride;
    Unit* y = to + row * wanted.columns;
    const int64_t columns = row < shape.rows ? shape.columns : 0;
    for (int64_t first = threadIdx.x; first < wanted.columns; first += kEach * blockDim.x) {
      Unit values[kEach];  // all loads come before the stores
      for (int j = 0; j < kEach; ++j) {
        const int64_t i = first + j * static_cast<int64_t>(blockDim.x);
        values[j] = i < columns ? x[i] : Unit{};
      }
      for (int j = 0; j < kEach; ++j) {
        const int64_t i = first + j * static_cast<int64_t>(blockDim.x);
        if (i < wanted.columns) y[i] = values[j];
      }
    }
  }
}

template <class Unit>
void launch_copy(const RowsFrom& from, void* to, Rows wanted, cudaStream_t stream) {
  constexpr int64_t kElements = sizeof(Unit) / sizeof(uint16_t);
  const Rows shape = {from.shape.rows, from.shape.columns / kElements};
  const Rows units = {wanted.rows, wanted.columns / kElements};
  const unsigned blocks = static_cast<unsigned>(wanted.rows > 1 << 20 ? 1 << 20 : wanted.rows);
  const unsigned threads = units.columns > 128 ? kThreads : 128;
  launch(copy<Unit>, blocks, threads, stream, static_cast<const Unit*>(from.data),
         from.stride / kElements, shape, static_cast<Unit*>(to), units);
}

}  // namespace

void copy_rows(const RowsFrom& from, void* to, Rows wanted, cudaStream_t stream) {
  if (wanted.rows * wanted.columns == 0) return;
  const auto bytes = reinterpret_cast<uintptr_t>(from.data) | reinterpret_cast<uintptr_t>(to) |
                     static_cast<uintptr_t>(sizeof(uint16_t) *
                                            (from.stride | from.shape.columns | wanted.columns));
  if (bytes % sizeof(int4) == 0) {
    launch_copy<int4>(from, to, wanted, stream);
  } else {
    launch_copy<uint16_t>(from, to, wanted, stream);
  }
}

}  // namespace perigee::cuda
