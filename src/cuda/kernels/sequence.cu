// Rotary position embedding, and merging of attention to two sets of keys.
#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// A thread rotates an element of a row's first half and its counterpart in the second half. A: the type
// of the angles.
template <class T, class A>
__global__ void turn(const T* x, const A* cos, const A* sin, T* y, Heads shape, bool backward) {
  using W = Wide<T>;
  const int64_t half = shape.columns / 2;
  const int64_t n = shape.batch * shape.heads * shape.positions * half;
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const int64_t row = i / half, column = i % half;
    const int64_t position = row % shape.positions, head = row / shape.positions % shape.heads;
    const int64_t batch = row / shape.positions / shape.heads;
    const int64_t from = batch * shape.batch_stride + head * shape.head_stride +
                         position * shape.position_stride + column;
    const int64_t to = row * shape.columns + column, angle = position * shape.columns + column;
    const W a = load(x, from), b = load(x, from + half);
    const W c = load(cos, angle), d = load(cos, angle + half);
    const W s = load(sin, angle), t = load(sin, angle + half);
    store(y, to, backward ? a * c + b * t : a * c - b * s);
    store(y, to + half, backward ? b * d - a * s : b * d + a * t);
  }
}

// Averages the outputs, weighted by the sums of exponentials.
template <class T>
__global__ void merge(const Wide<T>* self, const Wide<T>* logsumexp, const T* other,
                      const Wide<T>* other_logsumexp, Wide<T>* output, Wide<T>* sums, Rows shape) {
  using W = Wide<T>;
  const int64_t n = shape.rows * shape.columns, step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += step) {
    const int64_t row = i / shape.columns;
    const W a = logsumexp[row], b = other_logsumexp[row], high = a > b ? a : b;
    const W sum = isinf(high) ? high : high + log(exp(a - high) + exp(b - high));
    const W first = isinf(sum) ? W(0) : exp(a - sum), second = isinf(sum) ? W(0) : exp(b - sum);
    output[i] = self[i] * first + static_cast<W>(load(other, i)) * second;
    if (i % shape.columns == 0) sums[row] = sum;
  }
}

}  // namespace

void rotary(const void* x, const void* cos, const void* sin, void* y, const Heads& shape,
            bool backward, RotaryTypes types, cudaStream_t stream) {
  const int64_t n = shape.batch * shape.heads * shape.positions * (shape.columns / 2);
  if (n == 0) return;
  dispatch_floating(types.element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    const auto start = [&](auto* angle_type) {
      using A = std::remove_pointer_t<decltype(angle_type)>;
      launch(turn<T, A>, blocks_for(n), kThreads, stream, static_cast<const T*>(x),
             static_cast<const A*>(cos), static_cast<const A*>(sin), static_cast<T*>(y), shape,
             backward);
    };
    types.angles == types.element ? start(type) : start(static_cast<Wide<T>*>(nullptr));
  });
}

void merge_attention(const Attended& self, const Attended& other, void* output, void* logsumexp,
                     Rows shape, Element element, cudaStream_t stream) {
  const int64_t n = shape.rows * shape.columns;
  if (n == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    using W = Wide<T>;
    launch(merge<T>, blocks_for(n), kThreads, stream, static_cast<const W*>(self.output),
           static_cast<const W*>(self.logsumexp), static_cast<const T*>(other.output),
           static_cast<const W*>(other.logsumexp), static_cast<W*>(output),
           static_cast<W*>(logsumexp), shape);
  });
}

}  // namespace perigee::cuda
