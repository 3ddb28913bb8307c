// Copies, sums and norms over whole buffers, and the optimizers. Numbers that change by step are
// read by the GPU.
#include <ATen/ATen.h>

#include "base/error.h"
#include "cuda/ops.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

const double* scalar(Operands in, int position) {
  return position < 0 ? nullptr : in[position].const_data_ptr<double>();
}

void check_pair(const std::string& op, const Tensor& self, const Tensor& other) {
  if (!is_computed(self.scalar_type()) || !self.is_contiguous() || !other.is_contiguous() ||
      self.scalar_type() != other.scalar_type() || self.numel() != other.numel()) {
    fail("exec",
         "{} needs contiguous floating point tensors of one type and size, but got {} of {} and {} "
         "of {}",
         op, self.numel(), c10::toString(self.scalar_type()), other.numel(),
         c10::toString(other.scalar_type()));
  }
}

Kernel make_adam(const Arguments& a, bool decoupled) {
  const AdamNumbers numbers = {.beta1 = a.number("beta1", 0.9),
                               .beta2 = a.number("beta2", 0.999),
                               .eps = a.number("eps", 1e-8),
                               .weight_decay = a.number("weight_decay", 0.0),
                               .decoupled = decoupled};
  return [name = a.name(), numbers, self = a.operand("self"), first = a.operand("exp_avg"),
          second = a.operand("exp_avg_sq"), gradient = a.operand("gradient"), lr = a.operand("lr"),
          step = a.operand("step"),
          scale = a.optional_operand("scale")](Operands in, Results, const Draw&) {
    for (int other : {first, second, gradient}) check_pair(name, in[self], in[other]);
    adam({.parameter = in[self].mutable_data_ptr(),
          .first = in[first].mutable_data_ptr(),
          .second = in[second].mutable_data_ptr(),
          .gradient = in[gradient].const_data_ptr()},
         in[self].numel(), element_of(in[self].scalar_type()), numbers,
         {.lr = scalar(in, lr), .step = scalar(in, step), .scale = scalar(in, scale)},
         current_stream());
    check_launch("adam");
  };
}

}  // namespace

Kernel reshape(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), shape = a.type().shape](Operands in, Results out, const Draw&) {
    out[0] = at::empty(shape, in[self].options());
    out[0].view(in[self].sizes()).copy_(in[self]);
  };
}

Kernel copy(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), source = a.operand("source"), factor = a.number("scale", 1.0)](
             Operands in, Results, const Draw&) {
    in[self].copy_(in[source]);
    if (factor != 1) in[self].mul_(factor);
  };
}

Kernel accumulate(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), other = a.operand("other"), factor = a.number("scale", 1.0)](
             Operands in, Results, const Draw&) { in[self].add_(in[other], factor); };
}

Kernel scale(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), factor = a.operand("scale")](
             Operands in, Results, const Draw&) { in[self].mul_(in[factor]); };
}

Kernel squared_norm(const Arguments& a, const OpContext&) {
  return [tensors = a.operands("tensors")](Operands in, Results out, const Draw&) {
    const auto options = in[tensors.at(0)].options().dtype(at::kDouble);
    const auto count = std::ssize(tensors);
    const auto partials = at::empty({count, kPartials}, options);
    for (int64_t i = 0; i < count; ++i) {
      const auto& t = in[tensors[i]];
      if (!is_computed(t.scalar_type()) || !t.is_contiguous()) {
        fail("exec", "squared_norm needs contiguous floating point tensors, but got {}",
             c10::toString(t.scalar_type()));
      }
      square_partials(t.const_data_ptr(), t.numel(), element_of(t.scalar_type()),
                      partials.mutable_data_ptr<double>() + i * kPartials, current_stream());
    }
    out[0] = at::empty({}, options);
    sum_partials(partials.const_data_ptr<double>(), count, out[0].mutable_data_ptr<double>(),
                 current_stream());
    check_launch("squared_norm");
  };
}

Kernel clip_scale(const Arguments& a, const OpContext&) {
  return [squared = a.operand("squared_norm"), max_norm = a.number("max_norm"),
          factor = a.number("factor", 1.0)](Operands in, Results out, const Draw&) {
    double* results[2] = {};
    for (size_t i = 0; i < std::min<size_t>(out.size(), 2); ++i) {
      out[i] = at::empty({}, in[squared].options());
      results[i] = out[i].mutable_data_ptr<double>();
    }
    clip_scale(in[squared].const_data_ptr<double>(), max_norm, factor, results[0], results[1],
               current_stream());
    check_launch("clip_scale");
  };
}

Kernel adamw(const Arguments& a, const OpContext&) { return make_adam(a, true); }
Kernel adam(const Arguments& a, const OpContext&) { return make_adam(a, false); }

Kernel sgd(const Arguments& a, const OpContext&) {
  const SgdNumbers numbers = {.momentum = a.number("momentum", 0.0),
                              .dampening = a.number("dampening", 0.0),
                              .weight_decay = a.number("weight_decay", 0.0),
                              .nesterov = a.flag("nesterov", false)};
  return [name = a.name(), numbers, self = a.operand("self"),
          buffer = a.optional_operand("momentum_buffer"), gradient = a.operand("gradient"),
          lr = a.operand("lr"), step = a.operand("step"),
          scale = a.optional_operand("scale")](Operands in, Results, const Draw&) {
    check_pair(name, in[self], in[gradient]);
    if (buffer >= 0) check_pair(name, in[self], in[buffer]);
    sgd({.parameter = in[self].mutable_data_ptr(),
         .momentum = buffer < 0 ? nullptr : in[buffer].mutable_data_ptr(),
         .gradient = in[gradient].const_data_ptr()},
        in[self].numel(), element_of(in[self].scalar_type()), numbers,
        {.lr = scalar(in, lr), .step = scalar(in, step), .scale = scalar(in, scale)},
        current_stream());
    check_launch("sgd");
  };
}

}  // namespace perigee::cuda
