#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

constexpr int kEach = 8;  // loads of a thread in flight

// One block per row; Unit is one element, or 16 bytes of them.
template <class Unit>
__global__ void copy(const Unit* from, int64_t stride, Rows shape, Unit* to, Rows padded) {
  for (int64_t row = blockIdx.x; row < padded.rows; row += gridDim.x) {
    const Unit* x = from + row * stride;
    Unit* y = to + row * padded.columns;
    const int64_t columns = row < shape.rows ? shape.columns : 0;
    for (int64_t first = threadIdx.x; first < padded.columns; first += kEach * blockDim.x) {
      Unit values[kEach];  // all loads come before the stores
      for (int j = 0; j < kEach; ++j) {
        const int64_t i = first + j * static_cast<int64_t>(blockDim.x);
        values[j] = i < columns ? x[i] : Unit{};
      }
      for (int j = 0; j < kEach; ++j) {
        const int64_t i = first + j * static_cast<int64_t>(blockDim.x);
        if (i < padded.columns) y[i] = values[j];
      }
    }
  }
}

template <class Unit>
void launch_copy(const RowsFrom& from, void* to, Rows padded, cudaStream_t stream) {
  constexpr int64_t kElements = sizeof(Unit) / sizeof(uint16_t);
  const Rows shape = {from.shape.rows, from.shape.columns / kElements};
  const Rows wanted = {padded.rows, padded.columns / kElements};
  const unsigned blocks = static_cast<unsigned>(padded.rows > 1 << 20 ? 1 << 20 : padded.rows);
  const unsigned threads = wanted.columns > 128 ? kThreads : 128;
  launch(copy<Unit>, blocks, threads, stream, static_cast<const Unit*>(from.data),
         from.stride / kElements, shape, static_cast<Unit*>(to), wanted);
}

}  // namespace

void copy_rows(const RowsFrom& from, void* to, Rows padded, cudaStream_t stream) {
  if (padded.rows * padded.columns == 0) return;
  const auto bytes = reinterpret_cast<uintptr_t>(from.data) | reinterpret_cast<uintptr_t>(to) |
                     static_cast<uintptr_t>(sizeof(uint16_t) *
                                            (from.stride | from.shape.columns | padded.columns));
  if (bytes % sizeof(int4) == 0) {
    launch_copy<int4>(from, to, padded, stream);
  } else {
    launch_copy<uint16_t>(from, to, padded, stream);
  }
}

}  // namespace perigee::cuda
