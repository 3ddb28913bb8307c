#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

// One block per piece.
template <class T>
__global__ void squares(TensorList list, double* partials) {
  constexpr int kEach = Pack<T>::kElements, kStride = kThreads * kEach;
  int k = 0;
  for (int i = 1; i < list.count; ++i) k += blockIdx.x >= list.pieces[i];
  const T* tensor = static_cast<const T*>(list.tensors[k]);
  const int64_t n = list.elements[k];
  const int64_t begin = (blockIdx.x - list.pieces[k]) * kPieceElements;
  const int64_t end = begin + kPieceElements < n ? begin + kPieceElements : n;
  double sum = 0;
  const auto add = [&](double v) { sum += v * v; };
  // Both branches add in the same order.
  if (elements_to_pack(tensor) == 0 && end - begin == kPieceElements) {
    constexpr int kLoads = 4;  // in flight
    static_assert(kPieceElements % (kLoads * kStride) == 0);
    const T* from = tensor + begin + threadIdx.x * kEach;
    for (int64_t i = 0; i < kPieceElements; i += kLoads * kStride) {
      Pack<T> packs[kLoads];
      for (int p = 0; p < kLoads; ++p) packs[p] = load_pack(from + i + p * kStride);
      for (int p = 0; p < kLoads; ++p) {
        for (int j = 0; j < kEach; ++j) add(load(packs[p].values, j));
      }
    }
  } else {
    for (int64_t i = begin + threadIdx.x * kEach; i < end; i += kStride) {
      for (int64_t j = i; j < i + kEach && j < end; ++j) add(load(tensor, j));
    }
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void add_up(const double* partials, int64_t n, double* out) {
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *out = sum;
}

__global__ void clip(const double* squared, const float* loss_scale, ClipNumbers numbers,
                     double* norm, double* scale) {
  const double factor = exec::gradient_factor(numbers.factor, loss_scale);
  const double n = factor * sqrt(*squared);
  if (norm) *norm = n;
  if (scale) *scale = exec::clipped_factor(factor, n, numbers.max_norm);
  if (scale && loss_scale && !exec::is_finite(*squared)) *scale = nan("");
}

__global__ void update(exec::LossScaleScalars state, exec::LossScaleNumbers numbers,
                       const double* squared_norm, const double* step, const double* examined) {
  exec::update_loss_scale(state, numbers, *squared_norm, *step, examined);
}

}  // namespace

void square_partials(const TensorList& list, Element element, double* partials,
                     cudaStream_t stream) {
  const int64_t pieces = list.pieces[list.count];
  if (pieces == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(squares<T>, static_cast<unsigned>(pieces), kThreads, stream, list, partials);
  });
}

void sum_partials(const double* partials, int64_t n, double* out, cudaStream_t stream) {
  launch(add_up, 1, kThreads, stream, partials, n, out);
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
