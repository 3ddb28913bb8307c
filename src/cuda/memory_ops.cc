// Copies, sums and norms over whole buffers, and the optimizers. Numbers that change by step are
// read by the GPU.
#include <ATen/ATen.h>

#include "base/error.h"
#include "cuda/ops.h"
#include "exec/step_number.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

const double* scalar(Operands in, int position) {
  return position < 0 ? nullptr : in[position].const_data_ptr<double>();
}

// The operands that all optimizers have.
struct Common {
  explicit Common(const Arguments& a)
      : name(a.name()),
        self(a.operand("self")),
        gradient(a.operand("gradient")),
        lr(a.operand("lr")),
        step(a.operand("step")),
        scale(a.optional_operand("scale")),
        noise(a.optional_operand("noise")),
        weight_decay(a, "weight_decay"),
        guarded(a.flag("guarded", false)) {}

  StepScalars now(Operands in) const {
    return {.lr = scalar(in, lr),
            .step = scalar(in, step),
            .scale = scalar(in, scale),
            .weight_decay = scalar(in, weight_decay.position()),
            .fixed_weight_decay = weight_decay.attribute(),
            .guarded = guarded};
  }

  // Returns the operands' types. Throws Error where they do not fit together.
  OptimizerTypes types(Operands in, std::initializer_list<int> states) const {
    const auto& p = in[self];
    auto state = noise < 0 ? p.scalar_type() : at::kFloat;
    for (const int s : states) {
      if (s >= 0) state = in[s].scalar_type();
    }
    const auto g = in[gradient].scalar_type();
    const auto same = [&](int other, at::ScalarType type) {
      return other < 0 || (in[other].is_contiguous() && in[other].numel() == p.numel() &&
                           in[other].scalar_type() == type);
    };
    const auto t = p.scalar_type();
    const bool known = (is_computed(t) && state == t && g == t) ||
                       (t == at::kFloat && state == t && (g == at::kBFloat16 || g == at::kHalf)) ||
                       (t == at::kBFloat16 && state == at::kFloat && (g == t || g == at::kFloat));
    bool fits = known && p.is_contiguous() && same(gradient, g) && same(noise, at::kFloat);
    for (const int s : states) fits = fits && same(s, state);
    if (!fits) {
      fail("exec",
           "{} needs contiguous tensors of one size and floating point types as graph/ops.h says, "
           "but got {} parameters of {}, states of {}, {} gradients of {}",
           name, p.numel(), c10::toString(t), c10::toString(state), in[gradient].numel(),
           c10::toString(g));
    }
    return {element_of(t), element_of(state), element_of(g)};
  }

  const float* noise_of(Operands in) const {
    return noise < 0 ? nullptr : in[noise].const_data_ptr<float>();
  }

  std::string name;
  int self, gradient, lr, step, scale, noise;
  exec::StepNumber weight_decay;
  bool guarded;
};

Kernel make_adam(const Arguments& a, bool decoupled) {
  const AdamNumbers numbers = {.beta1 = a.number("beta1", 0.9),
                               .beta2 = a.number("beta2", 0.999),
                               .eps = a.number("eps", 1e-8),
                               .decoupled = decoupled};
  return [c = Common(a), numbers, first = a.operand("exp_avg"), second = a.operand("exp_avg_sq")](
             Operands in, Results, const Draw&) {
    adam({.parameter = in[c.self].mutable_data_ptr(),
          .first = in[first].mutable_data_ptr(),
          .second = in[second].mutable_data_ptr(),
          .gradient = in[c.gradient].const_data_ptr(),
          .noise = c.noise_of(in)},
         in[c.self].numel(), c.types(in, {first, second}), numbers, c.now(in), current_stream());
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
    if (factor != 1 && in[self].element_size() < in[source].element_size()) {
      auto to = in[self];
      at::mul_out(to, in[source], at::scalar_tensor(factor));  // rounded behind it
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
          step = a.operand("step")](Operands in, Results, const Draw&) {
    update_loss_scale(
        {.scale = in[scale].mutable_data_ptr<float>(),
         .growth_tracker = in[tracker].mutable_data_ptr<double>(),
         .skipped_steps = in[skipped].mutable_data_ptr<double>(),
         .applied_step = in[applied].mutable_data_ptr<double>(),
         .patience = patience < 0 ? nullptr : in[patience].mutable_data_ptr<double>()},
        numbers, in[squared].const_data_ptr<double>(), in[step].const_data_ptr<double>(),
        current_stream());
    check_launch("update_loss_scale");
  };
}

Kernel adamw(const Arguments& a, const OpContext&) { return make_adam(a, true); }
Kernel adam(const Arguments& a, const OpContext&) { return make_adam(a, false); }

Kernel lion(const Arguments& a, const OpContext&) {
  const LionNumbers numbers = {.beta1 = a.number("beta1", 0.9), .beta2 = a.number("beta2", 0.99)};
  return
      [c = Common(a), numbers, average = a.operand("exp_avg")](Operands in, Results, const Draw&) {
        lion({.parameter = in[c.self].mutable_data_ptr(),
              .average = in[average].mutable_data_ptr(),
              .gradient = in[c.gradient].const_data_ptr(),
              .noise = c.noise_of(in)},
             in[c.self].numel(), c.types(in, {average}), numbers, c.now(in), current_stream());
        check_launch("lion");
      };
}

Kernel sgd(const Arguments& a, const OpContext&) {
  const SgdNumbers numbers = {.momentum = a.number("momentum", 0.0),
                              .dampening = a.number("dampening", 0.0),
                              .nesterov = a.flag("nesterov", false)};
  return [c = Common(a), numbers, buffer = a.optional_operand("momentum_buffer")](
             Operands in, Results, const Draw&) {
    sgd({.parameter = in[c.self].mutable_data_ptr(),
         .momentum = buffer < 0 ? nullptr : in[buffer].mutable_data_ptr(),
         .gradient = in[c.gradient].const_data_ptr(),
         .noise = c.noise_of(in)},
        in[c.self].numel(), c.types(in, {buffer}), numbers, c.now(in), current_stream());
    check_launch("sgd");
  };
}

}  // namespace perigee::cuda
