// Copies, sums and norms over whole buffers.
#include <ATen/ATen.h>

#include <limits>

#include "base/fail.h"
#include "cuda/ops/ops.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

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
    if (factor != 1 && in[self].element_size() < in[source].element_size()) {
      auto to = in[self];
      at::mul_out(to, in[source], at::scalar_tensor(factor));  // rounded once, after the product
      return;
    }
    in[self].copy_(in[source]);
    if (factor != 1) in[self].mul_(factor);
  };
}

Kernel accumulate(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), other = a.operand("other"), factor = a.number("scale", 1.0)](
             Operands in, Results, const Draw&) { in[self].add_(in[other], factor); };
}

Kernel scale(const Arguments& a, const OpContext&) {
  return
      [self = a.operand("self"), factor = a.operand("scale")](Operands in, Results, const Draw&) {
        auto to = in[self];
        if (!at::isReducedFloatingType(to.scalar_type())) {
          to.mul_(in[factor]);
          return;
        }
        // A factor without dims would be rounded to 16 bits.
        const std::vector<int64_t> ones(static_cast<size_t>(to.dim()), 1);
        at::mul_out(to, to, in[factor].to(at::kFloat).view(ones));
      };
}

Kernel squared_norm(const Arguments& a, const OpContext&) {
  return [tensors = a.operands("tensors")](Operands in, Results out, const Draw&) {
    int64_t pieces = 0;
    for (auto i : tensors) {
      const auto& t = in[i];
      if (!is_computed(t.scalar_type()) || !t.is_contiguous()) {
        fail("exec", "squared_norm needs contiguous floating point tensors, but got {}",
             c10::toString(t.scalar_type()));
      }
      pieces += square_pieces(t.numel());
    }
    const auto options = in[tensors.at(0)].options().dtype(at::kDouble);
    const auto partials = at::empty({pieces}, options);
    auto* next = partials.mutable_data_ptr<double>();
    TensorList list;
    const auto launch_list = [&](at::ScalarType type) {
      square_partials(list, element_of(type), next, current_stream());
      next += list.pieces[list.count];
      list.count = 0;
    };
    auto type = in[tensors.at(0)].scalar_type();
    for (auto i : tensors) {
      const auto& t = in[i];
      if (list.count == TensorList::kMost || t.scalar_type() != type) launch_list(type);
      type = t.scalar_type();
      list.tensors[list.count] = t.const_data_ptr();
      list.elements[list.count] = t.numel();
      const int64_t before = list.pieces[list.count++];
      list.pieces[list.count] = before + square_pieces(t.numel());
    }
    launch_list(type);
    out[0] = at::empty({}, options);
    sum_partials(partials.const_data_ptr<double>(), pieces, out[0].mutable_data_ptr<double>(),
                 current_stream());
    check_launch("squared_norm");
  };
}

Kernel clip_scale(const Arguments& a, const OpContext&) {
  const ClipNumbers numbers = {.max_norm = a.number("max_norm"), .factor = a.number("factor", 1.0)};
  return [numbers, squared = a.operand("squared_norm"),
          loss_scale = a.optional_operand("loss_scale")](Operands in, Results out, const Draw&) {
    double* results[2] = {};
    for (size_t i = 0; i < std::min<size_t>(out.size(), 2); ++i) {
      out[i] = at::empty({}, in[squared].options());
      results[i] = out[i].mutable_data_ptr<double>();
    }
    clip_scale(in[squared].const_data_ptr<double>(),
               loss_scale < 0 ? nullptr : in[loss_scale].const_data_ptr<float>(), numbers,
               results[0], results[1], current_stream());
    check_launch("clip_scale");
  };
}

Kernel update_loss_scale(const Arguments& a, const OpContext&) {
  const exec::LossScaleNumbers numbers = {.growth_factor = a.number("growth_factor"),
                                          .backoff_factor = a.number("backoff_factor"),
                                          .growth_interval = a.integer("growth_interval"),
                                          .min_scale = a.number("min_scale", 0.0),
                                          .hysteresis = a.integer("hysteresis", 1)};
  return [numbers, scale = a.operand("loss_scale"), tracker = a.operand("growth_tracker"),
          skipped = a.operand("skipped_steps"), applied = a.operand("applied_step"),
          patience = a.optional_operand("patience"), squared = a.operand("squared_norm"),
          step = a.operand("step"),
          examined = a.optional_operand("scale")](Operands in, Results, const Draw&) {
    update_loss_scale(
        {.scale = in[scale].mutable_data_ptr<float>(),
         .growth_tracker = in[tracker].mutable_data_ptr<double>(),
         .skipped_steps = in[skipped].mutable_data_ptr<double>(),
         .applied_step = in[applied].mutable_data_ptr<double>(),
         .patience = patience < 0 ? nullptr : in[patience].mutable_data_ptr<double>()},
        numbers, in[squared].const_data_ptr<double>(), in[step].const_data_ptr<double>(),
        examined < 0 ? nullptr : in[examined].const_data_ptr<double>(), current_stream());
    check_launch("update_loss_scale");
  };
}

// The decision stays on the device: the host does not wait for it.
Kernel examine_step(const Arguments& a, const OpContext&) {
  return [scale = a.operand("scale"), norm = a.operand("norm"), loss = a.optional_operand("loss"),
          most_loss = a.operand("most_loss"),
          most_norm = a.operand("most_norm")](Operands in, Results, const Draw&) {
    const auto passes = [](const Tensor& value, const Tensor& most) {
      return at::isfinite(value).logical_and_(value <= most);
    };
    auto good = passes(in[norm], in[most_norm]);
    if (loss >= 0) good.logical_and_(passes(in[loss].to(at::kDouble), in[most_loss]));
    in[scale].masked_fill_(good.logical_not_(), std::numeric_limits<double>::quiet_NaN());
  };
}

Kernel restore(const Arguments& a, const OpContext&) {
  return [self = a.operand("self"), source = a.operand("source"), scale = a.operand("scale")](
             Operands in, Results, const Draw&) {
    in[self].copy_(at::where(at::isnan(in[scale]), in[source], in[self]));
  };
}

}  // namespace perigee::cuda
