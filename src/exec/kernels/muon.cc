// muon (Jordan et al. 2024) on boxes of matrices (graph/ops.h).
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/fail.h"
#include "exec/kernels/element.h"
#include "exec/kernels/kernels.h"
#include "exec/ops/step_number.h"
#include "exec/reference/ops.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

template <class F>
void muon_dispatch(const Tensor& t, F f) {
  if (t.is_contiguous() && dispatch_element(t.scalar_type(), f)) return;
  fail("exec", "muon needs contiguous floating point tensors, but got {}",
       c10::toString(t.scalar_type()));
}

// Calls f(index in the box, index in the matrix) for each element of box k.
template <class F>
void each(const Tensor& box, const std::vector<int64_t>& begins, size_t k, int64_t columns, F f) {
  const int64_t row = begins[2 * k], column = begins[2 * k + 1], wide = box.size(1);
  for (int64_t i = 0; i < box.size(0); ++i) {
    for (int64_t j = 0; j < wide; ++j) f(i * wide + j, (row + i) * columns + column + j);
  }
}

}  // namespace

Kernel muon_update(const Arguments& a) {
  return [self = a.operand("self"), buffers = a.operands("momentum_buffer"),
          gradients = a.operands("gradients"), scale = a.operand("scale"),
          begins = a.integers("begins"), momentum = a.number("momentum"),
          nesterov = a.flag("nesterov")](std::span<const Tensor> in, std::span<Tensor>,
                                         const Draw&) {
    const auto& whole = in[self];
    std::memset(whole.mutable_data_ptr(), 0, whole.nbytes());
    const double by = scalar(in[scale]);
    if (std::isnan(by)) return;
    muon_dispatch(whole, [&]<class T>() {
      T* to = whole.mutable_data_ptr<T>();
      for (size_t k = 0; k < gradients.size(); ++k) {
        const auto& g = in[gradients[k]];
        const auto& buffer = in[buffers[k]];
        if (buffer.scalar_type() != whole.scalar_type() || !g.is_contiguous()) {
          fail("exec", "muon needs its state in its parameter's type, but got {}",
               c10::toString(buffer.scalar_type()));
        }
        T* m = buffer.mutable_data_ptr<T>();
        dispatch_gradient(g.scalar_type(), [&]<class G>() {
          const G* from = g.const_data_ptr<G>();
          each(g, begins, k, whole.size(1), [&](int64_t i, int64_t at) {
            const double value = load(from, i) * by, old = load(m, i);
            const double now = old + (value - old) * (1 - momentum);
            store(m, i, static_cast<Wide<T>>(now));
            store(to, at, static_cast<Wide<T>>(nesterov ? value + (now - value) * momentum : now));
          });
        });
      }
    });
  };
}

Kernel orthogonalize(const Arguments& a) {
  return [self = a.operand("self"), squares = a.operand("squares"), other = a.operand("other"),
          steps = a.integer("steps")](std::span<const Tensor> in, std::span<Tensor>, const Draw&) {
    const auto& x = in[self];
    if (x.numel() == 0) return;
    double norm = 0;
    muon_dispatch(x, [&]<class T>() {
      const T* p = x.const_data_ptr<T>();
      norm = std::sqrt(lane_sum<double>(
          x.numel(), [&](int64_t i) { return static_cast<double>(load(p, i)) * load(p, i); }));
    });
    muon_dispatch(x, [&]<class T>() {
      T* p = x.mutable_data_ptr<T>();
      for (int64_t i = 0; i < x.numel(); ++i) {
        store(p, i, static_cast<Wide<T>>(load(p, i) / (norm + 1e-7)));
      }
    });
    newton_schulz(x, in[squares], in[other], steps);
  };
}

Kernel muon(const Arguments& a) {
  return [weights = a.operands("weights"), update = a.operand("update"), lr = a.operand("lr"),
          scale = a.operand("scale"), begins = a.integers("begins"),
          decay = StepNumber(a, "weight_decay")](std::span<const Tensor> in, std::span<Tensor>,
                                                 const Draw&) {
    if (std::isnan(scalar(in[scale]))) return;
    const auto& whole = in[update];
    const double rate = scalar(in[lr]), shrink = 1 - rate * decay.of(in);
    const double tall = static_cast<double>(whole.size(0)) /
                        static_cast<double>(std::max<int64_t>(1, whole.size(1)));
    const double by = rate * std::sqrt(std::max(1.0, tall));
    muon_dispatch(whole, [&]<class T>() {
      const T* from = whole.const_data_ptr<T>();
      for (size_t k = 0; k < weights.size(); ++k) {
        T* p = in[weights[k]].mutable_data_ptr<T>();
        each(in[weights[k]], begins, k, whole.size(1), [&](int64_t i, int64_t at) {
          store(p, i, static_cast<Wide<T>>(load(p, i) * shrink - by * load(from, at)));
        });
      }
    });
  };
}

}  // namespace perigee::exec::kernels
