#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

using Bits = uint16_t;    // of an element
constexpr int kEach = 8;  // elements in 16 bytes

// Returns the 16 bytes at x, which is `shift` elements after a multiple of 16 bytes.
template <int shift>
__device__ int4 load_between(const Bits* x) {
  const auto* at = reinterpret_cast<const int4*>(x - shift);
  if constexpr (shift == 0) return *at;
  const int4 low = at[0], high = at[1];
  const int words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
  const auto word = [&](int i) {
    const auto first = static_cast<unsigned>(words[i + shift / 2]);
    if constexpr (shift % 2 == 0) return static_cast<int>(first);
    return static_cast<int>(first >> 16 | static_cast<unsigned>(words[i + shift / 2 + 1]) << 16);
  };
  return {word(0), word(1), word(2), word(3)};
}

// y [columns] = x [n], with zeros beyond it. Where y is at a multiple of 16 bytes, x is `shift`
// elements after one.
template <int shift>
__device__ void copy_row(const Bits* x, int64_t n, Bits* y, int64_t columns) {
  const int64_t head = elements_to_pack(y);
  // Between them 16 bytes are stored at once, whose loads lie within x.
  const int64_t begin = head < shift ? head + kEach : head;
  const int64_t last = (n < columns ? n : columns) + shift - (shift ? 2 * kEach : kEach);
  const int64_t end = last < begin ? begin : begin + (last - begin) / kEach * kEach + kEach;
  for (int64_t i = begin + threadIdx.x * kEach; i < end; i += blockDim.x * kEach) {
    __stwb(reinterpret_cast<int4*>(y + i), load_between<shift>(x + i));
  }
  const auto one = [&](int64_t i) { y[i] = i < n ? x[i] : Bits(0); };
  const int64_t first = begin < columns ? begin : columns;
  for (int64_t i = threadIdx.x; i < first; i += blockDim.x) one(i);
  for (int64_t i = end + threadIdx.x; i < columns; i += blockDim.x) one(i);
}

// One block per row; a block continues with rows beyond the grid.
__global__ void copy(const Bits* from, int64_t stride, Rows shape, Bits* to, Rows wanted) {
  for (int64_t row = blockIdx.x; row < wanted.rows; row += gridDim.x) {
    const Bits* x = from + row * stride;
    Bits* y = to + row * wanted.columns;
    const int64_t n = row < shape.rows ? shape.columns : 0;
    const auto copy_with = [&](auto shift) { copy_row<shift>(x, n, y, wanted.columns); };
    switch ((kEach - elements_to_pack(x + elements_to_pack(y))) % kEach) {
      case 0:
        copy_with(std::integral_constant<int, 0>());
        break;
      case 1:
        copy_with(std::integral_constant<int, 1>());
        break;
      case 2:
        copy_with(std::integral_constant<int, 2>());
        break;
      case 3:
        copy_with(std::integral_constant<int, 3>());
        break;
      case 4:
        copy_with(std::integral_constant<int, 4>());
        break;
      case 5:
        copy_with(std::integral_constant<int, 5>());
        break;
      case 6:
        copy_with(std::integral_constant<int, 6>());
        break;
      default:
        copy_with(std::integral_constant<int, 7>());
    }
  }
}

}  // namespace

void copy_rows(const RowsFrom& from, void* to, Rows wanted, cudaStream_t stream) {
  if (wanted.rows * wanted.columns == 0) return;
  const unsigned blocks = static_cast<unsigned>(wanted.rows > 1 << 20 ? 1 << 20 : wanted.rows);
  const unsigned threads = wanted.columns > 128 * kEach ? kThreads : 128;
  launch(copy, blocks, threads, stream, static_cast<const Bits*>(from.data), from.stride,
         from.shape, static_cast<Bits*>(to), wanted);
}

}  // namespace perigee::cuda
