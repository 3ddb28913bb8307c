#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// Two passes with a fixed number of pieces: the order of additions depends on sizes alone.
template <class T>
__global__ void squares(const T* tensor, int64_t n, double* partials) {
  double sum = 0;
  const int64_t stride = int64_t{kPartials} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += stride) {
    const double v = load(tensor, i);
    sum += v * v;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void add_up(const double* partials, int64_t count, double* out) {
  static_assert(kPartials == kThreads);
  double total = 0;
  for (int64_t list = 0; list < count; ++list) {
    total += block_sum(partials[list * kPartials + threadIdx.x]);
  }
  if (threadIdx.x == 0) *out = total;
}

__global__ void clip(const double* squared, const float* loss_scale, ClipNumbers numbers,
                     double* norm, double* scale) {
  const double factor = exec::gradient_factor(numbers.factor, loss_scale);
  const double n = factor * sqrt(*squared);
  const double ratio = numbers.max_norm / (n + 1e-6);
  if (norm) *norm = n;
  // A NaN norm must reach the scale; min() would drop it.
  if (scale) *scale = numbers.max_norm <= 0 || ratio >= 1 ? factor : factor * ratio;
  if (scale && loss_scale && !exec::is_finite(*squared)) *scale = nan("");
}

__global__ void update(exec::LossScaleScalars state, exec::LossScaleNumbers numbers,
                       const double* squared_norm, const double* step, const double* examined) {
  exec::update_loss_scale(state, numbers, *squared_norm, *step, examined);
}

}  // namespace

void square_partials(const void* tensor, int64_t n, Element element, double* partials,
                     cudaStream_t stream) {
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(squares<T>, kPartials, kThreads, stream, static_cast<const T*>(tensor), n, partials);
  });
}

void sum_partials(const double* partials, int64_t count, double* out, cudaStream_t stream) {
  launch(add_up, 1, kThreads, stream, partials, count, out);
}

void clip_scale(const double* squared, const float* loss_scale, const ClipNumbers& numbers,
                double* norm, double* scale, cudaStream_t stream) {
  launch(clip, 1, 1, stream, squared, loss_scale, numbers, norm, scale);
}

void update_loss_scale(const exec::LossScaleScalars& state, const exec::LossScaleNumbers& numbers,
                       const double* squared_norm, const double* step, const double* examined,
                       cudaStream_t stream) {
  launch(update, 1, 1, stream, state, numbers, squared_norm, step, examined);
}

}  // namespace perigee::cuda
