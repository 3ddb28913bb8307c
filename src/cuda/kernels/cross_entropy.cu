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

// The sum of exp(x - shift(top)) over the elements that a thread has seen, of which top is the
// largest, and their weighted sum.
template <class W>
struct Running {
  W top = -infinity<W>(), sum = 0, weighted = 0;
};

// An infinite maximum is not subtracted.
template <class W>
__device__ W shift(W top) {
  return isfinite(top) ? top : W(0);
}

// Returns a sum of exponentials relative to another maximum.
template <class W>
__device__ W rescale(W sum, W from, W to) {
  return sum == 0 ? W(0) : sum * exp(shift(from) - shift(to));
}

template <class W, int n>
__device__ void add(Running<W>& running, const W (&values)[n]) {
  W top = running.top;
  for (int j = 0; j < n; ++j) top = fmax(top, values[j]);
  if (top > running.top) running.sum = rescale(running.sum, running.top, top);
  running.top = top;
  for (int j = 0; j < n; ++j) running.sum += exp(values[j] - shift(top));
}

// One block per row.
template <class T>
__global__ void forward(const T* logits, const int64_t* target, const T* weight, Wide<T>* losses,
                        Wide<T>* logsumexp, Rows shape, LossNumbers numbers, Fault* fault) {
  using W = Wide<T>;
  const int64_t classes = shape.columns;
  const bool smoothed = numbers.smoothing > 0;
  const W smooth = static_cast<W>(numbers.smoothing / static_cast<double>(classes));
  const W weights = smoothed ? class_weights(weight, classes) : W(0);
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* x = logits + row * numbers.stride;
    Running<W> running;
    for_row(x, classes, elements_to_pack(x), [&](int64_t first, const auto& values) {
      add(running, values);
      if (!smoothed) return;
      for (const W& value : values) {
        running.weighted += value * (weight ? load(weight, first + (&value - values)) : W(1));
      }
    });
    const W top = block_reduce(running.top, [](W a, W b) { return fmax(a, b); });
    const W lse = shift(top) + log(block_sum(rescale(running.sum, running.top, top)));
    const W weighted = smoothed ? block_sum(running.weighted) : W(0);
    if (threadIdx.x != 0) continue;
    logsumexp[row] = lse;
    const int64_t label = target[row];
    if (label == numbers.ignore_index || !is_class(label, classes, fault)) {
      losses[row] = 0;
      continue;
    }
    W loss = (weight ? load(weight, label) : W(1)) * (lse - load(x, label));
    if (smoothed) {
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
  const bool smoothed = numbers.smoothing > 0;
  const W smooth = static_cast<W>(numbers.smoothing / static_cast<double>(classes));
  const W weights = smoothed ? class_weights(weight, classes) : W(0);
  for (int64_t row = blockIdx.x; row < shape.rows; row += gridDim.x) {
    const T* x = logits + row * numbers.stride;
    T* d = d_logits + row * numbers.d_stride;
    // Packs only where they begin at multiples of 16 bytes in both.
    const int64_t head = elements_to_pack(x) == elements_to_pack(d) ? elements_to_pack(x) : classes;
    const int64_t label = target[row];
    const bool counts = label != numbers.ignore_index && is_class(label, classes, fault);
    if (!counts) {
      for_row(x, classes, head, [&](int64_t first, auto& values) {
        for (W& value : values) value = 0;
        store_values(d, first, values);
      });
      continue;
    }
    const W g = upstream[row], lse = logsumexp[row];
    const W picked = static_cast<W>(1 - numbers.smoothing) * (weight ? load(weight, label) : W(1));
    const W softmax = g * (picked + smooth * weights), spread = g * smooth;
    // Each thread reads an element before it writes it: d may be x.
    for_row(x, classes, head, [&](int64_t first, auto& values) {
      for (W& value : values) {
        const int64_t k = first + (&value - values);
        value = softmax * exp(value - lse);
        if (smoothed) value -= spread * (weight ? load(weight, k) : W(1));
        if (k == label) value -= g * picked;
      }
      store_values(d, first, values);
    });
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
