#include "cuda/kernels/element.cuh"

namespace perigee::cuda {
namespace {

template <class W>
__device__ W infinity() {
  return static_cast<W>(__longlong_as_double(0x7FF0000000000000LL));
}

// Returns whether the label is a class, else reports it. Only thread 0 writes.
__device__ bool is_class(int64_t label, int64_t classes, Fault* fault) {
  if (label >= 0 && label < classes) return true;
  if (threadIdx.x == 0 && atomicCAS_system(&fault->kind, Fault::none, Fault::label) == 0) {
    fault->value = label;
    fault->limit = classes;
    __threadfence_system();
  }
  return false;
}

// Returns the sum of the classes' weights, or the number of classes without weights.
template <class T>
__device__ Wide<T> class_weights(const T* weight, int64_t classes) {
  if (!weight) return static_cast<Wide<T>>(classes);
  Wide<T> sum = 0;
  for (int64_t k = threadIdx.x; k < classes; k += kThreads) sum += load(weight, k);
  return block_sum(sum);
}

// One block per row.
template <class T>
__global__ void forward(const T* logits, const int64_t* target, const T* weight, Wide<T>* losses,
                        Wide<T>* logsumexp, Rows shape, LossNumbers numbers, Fault* fault) {
  using W = Wide<T>;
  const int64_t classes = shape.columns;
  const W smooth = static_cast<W>(numbers.smoothing / static_cast<double>(classes));
  const W weights = numbers.smoothing > 0 ? class_weights(weight, classes) : W(0);
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* x = logits + row * classes;
    W top = -infinity<W>();
    for (int64_t k = threadIdx.x; k < classes; k += kThreads) top = fmax(top, load(x, k));
    top = block_reduce(top, [](W a, W b) { return fmax(a, b); });
    if (!isfinite(top)) top = 0;
    W sum = 0;
    for (int64_t k = threadIdx.x; k < classes; k += kThreads) sum += exp(load(x, k) - top);
    const W lse = top + log(block_sum(sum));
    W weighted = 0;
    if (numbers.smoothing > 0) {
      for (int64_t k = threadIdx.x; k < classes; k += kThreads) {
        weighted += load(x, k) * (weight ? load(weight, k) : W(1));
      }
      weighted = block_sum(weighted);
    }
    if (threadIdx.x != 0) continue;
    logsumexp[row] = lse;
    const int64_t label = target[row];
    if (label == numbers.ignore_index || !is_class(label, classes, fault)) {
      losses[row] = 0;
      continue;
    }
    W loss = (weight ? load(weight, label) : W(1)) * (lse - load(x, label));
    if (numbers.smoothing > 0) {
      loss = static_cast<W>(1 - numbers.smoothing) * loss + smooth * (weights * lse - weighted);
    }
    losses[row] = loss;
  }
}

template <class T>
__global__ void backward(const Wide<T>* upstream, const T* logits, const int64_t* target,
                         const Wide<T>* logsumexp, const T* weight, T* d_logits, Rows shape,
                         LossNumbers numbers, Fault* fault) {
  using W = Wide<T>;
  const int64_t classes = shape.columns;
  const W smooth = static_cast<W>(numbers.smoothing / static_cast<double>(classes));
  const W weights = numbers.smoothing > 0 ? class_weights(weight, classes) : W(0);
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* x = logits + row * classes;
    T* d = d_logits + row * classes;
    const int64_t label = target[row];
    const bool counts = label != numbers.ignore_index && is_class(label, classes, fault);
    if (!counts) {
      for (int64_t k = threadIdx.x; k < classes; k += kThreads) store(d, k, W(0));
      continue;
    }
    const W g = upstream[row], lse = logsumexp[row];
    const W picked = static_cast<W>(1 - numbers.smoothing) * (weight ? load(weight, label) : W(1));
    const W softmax = g * (picked + smooth * weights);
    // Each thread reads an element before it writes it: d may be x.
    for (int64_t k = threadIdx.x; k < classes; k += kThreads) {
      W value = softmax * exp(load(x, k) - lse) - g * smooth * (weight ? load(weight, k) : W(1));
      if (k == label) value -= g * picked;
      store(d, k, value);
    }
  }
}

unsigned row_blocks(int64_t rows) { return static_cast<unsigned>(rows > 65535 ? 65535 : rows); }

}  // namespace

void cross_entropy(const void* logits, const int64_t* target, const void* weight, void* losses,
                   void* logsumexp, Rows shape, const LossNumbers& numbers, Element element,
                   Fault* fault, cudaStream_t stream) {
  if (shape.rows == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(forward<T>, row_blocks(shape.rows), kThreads, stream, static_cast<const T*>(logits),
           target, static_cast<const T*>(weight), static_cast<Wide<T>*>(losses),
           static_cast<Wide<T>*>(logsumexp), shape, numbers, fault);
  });
}

void cross_entropy_backward(const void* upstream, const void* logits, const int64_t* target,
                            const void* logsumexp, const void* weight, void* d_logits, Rows shape,
                            const LossNumbers& numbers, Element element, Fault* fault,
                            cudaStream_t stream) {
  if (shape.rows == 0) return;
  dispatch_floating(element, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    launch(backward<T>, row_blocks(shape.rows), kThreads, stream,
           static_cast<const Wide<T>*>(upstream), static_cast<const T*>(logits), target,
           static_cast<const Wide<T>*>(logsumexp), static_cast<const T*>(weight),
           static_cast<T*>(d_logits), shape, numbers, fault);
  });
}

}  // namespace perigee::cuda
