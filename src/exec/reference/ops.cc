#include "exec/reference/ops.h"

#include <ATen/ATen.h>

#include <limits>
#include <map>

#include "base/fail.h"
#include "exec/ops/activated_product.h"
#include "exec/ops/expert_ops.h"
#include "exec/ops/random_op.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

at::ScalarType result_type(const Arguments& arguments, size_t output = 0) {
  return scalar_type(arguments.type(output).dtype);
}

// Half precision is computed in float32, as ATen's kernels do.
Tensor widen(const Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16 ? t.to(at::kFloat) : t;
}

// Sets a result that a caller may leave out. Every result is computed, also where it is not needed,
// so that an op's allocations do not depend on the uses of its results.
void put(Results out, size_t result, const Tensor& value) {
  if (result < out.size()) out[result] = value;
}

// ---- shape and constants

Kernel reshape(const Arguments& a) {
  return [self = a.operand("self"), shape = a.type().shape](Operands in, Results out, const Draw&) {
    out[0] = in[self].reshape(shape);
  };
}

Kernel expand(const Arguments& a) {
  return [self = a.operand("self"), shape = a.type().shape](Operands in, Results out, const Draw&) {
    out[0] = in[self].expand(shape);
  };
}

Kernel full(const Arguments& a) {
  at::Scalar value = a.number("value");
  const auto* arg = a.find("value");
  if (const auto* integer = std::get_if<int64_t>(arg)) value = *integer;
  return [value, shape = a.type().shape, dtype = result_type(a)](
             Operands, Results out, const Draw&) { out[0] = at::full(shape, value, dtype); };
}

Kernel cast(const Arguments& a) {
  return [self = a.operand("self"), dtype = result_type(a)](Operands in, Results out, const Draw&) {
    out[0] = in[self].to(dtype, /*non_blocking=*/false, /*copy=*/true);
  };
}

Kernel step_average(const Arguments& a) {
  return [self = a.operand("self")](Operands in, Results out, const Draw&) { out[0] = in[self]; };
}

// ---- random

Kernel random(const Arguments& a) {
  const RandomArguments random(a, a.type().shape);
  return [random, distribution = distribution_of(a), dtype = result_type(a)](Operands, Results out,
                                                                             const Draw& draw) {
    out[0] = at::empty(random.local, dtype);
    fill_random(out[0], distribution, random.stream(draw), random.block(draw));
  };
}

Kernel dropout_op(const Arguments& a) {
  const RandomArguments random(a, a.type().shape);
  return [random, self = a.operand("self"), p = a.number("p")](Operands in, Results out,
                                                               const Draw& draw) {
    out[0] = in[self].contiguous().clone();
    dropout(out[0], out[0], p, random.stream(draw), random.block(draw));
  };
}

// ---- attention

struct Attention {
  int query, key, value, bias, documents, key_documents;
  bool causal;
  double scale, p;
  RandomArguments random;
  Dropout dropout;

  Attention(const Arguments& a, Dropout dropout)
      : query(a.operand("query")),
        key(a.operand("key")),
        value(a.operand("value")),
        bias(a.optional_operand("bias")),
        documents(a.optional_operand("documents")),
        key_documents(a.optional_operand("key_documents")),
        causal(a.flag("causal", false)),
        scale(a.number("scale")),
        p(a.number("p", 0.0)),
        random(a, {}, "random_key"),
        dropout(dropout) {}

  // Returns keys or values repeated to one head per query head.
  static Tensor repeat_heads(const Tensor& t, int64_t heads) {
    return widen(t).repeat_interleave(heads / t.size(1), 1);
  }

  // Returns the scaled scores with bias, document and causal mask, [b, h, s, t].
  Tensor scores(Operands in) const {
    const auto q = widen(in[query]), k = repeat_heads(in[key], q.size(1));
    auto scores = at::matmul(q, k.transpose(-2, -1)) * scale;
    if (bias >= 0) {
      const auto& b = in[bias];
      scores = b.scalar_type() == at::kBool
                   ? scores.masked_fill(b.logical_not(), -std::numeric_limits<double>::infinity())
                   : scores + widen(b);
    }
    if (documents >= 0) {
      const auto other = in[documents].unsqueeze(1).unsqueeze(-1).ne(
          in[key_documents].unsqueeze(1).unsqueeze(-2));
      scores = scores.masked_fill(other, -std::numeric_limits<double>::infinity());
    }
    if (causal) {
      const auto allowed = at::ones({q.size(2), k.size(2)}, q.options().dtype(at::kBool)).tril();
      scores = scores.masked_fill(allowed.logical_not(), -std::numeric_limits<double>::infinity());
    }
    return scores;
  }

  // Returns the probabilities before dropout; rows without an allowed key are 0.
  static Tensor probabilities(const Tensor& scores, const Tensor& logsumexp) {
    const auto row = logsumexp.to(scores.scalar_type()).unsqueeze(-1);
    return at::where(at::isinf(row), at::zeros({}, scores.options()), (scores - row).exp());
  }

  // Returns the dropout mask: 0 or 1 / (1 - p).
  Tensor mask(const Tensor& scores, const Draw& draw) const {
    auto r = random;
    r.local = scores.sizes().vec();
    auto ones = at::ones(scores.sizes(), scores.options());
    dropout(ones, ones, p, r.stream(draw), r.block(draw));
    return ones;
  }
};

}  // namespace

Kernel attention_math(const Arguments& a, Dropout dropout) {
  return [op = Attention(a, dropout)](Operands in, Results out, const Draw& draw) {
    const auto scores = op.scores(in);
    const auto logsumexp = scores.logsumexp(-1);
    auto probabilities = Attention::probabilities(scores, logsumexp);
    if (op.p > 0) probabilities = probabilities * op.mask(scores, draw);
    const auto v = Attention::repeat_heads(in[op.value], scores.size(1));
    out[0] = at::matmul(probabilities, v).to(in[op.query].scalar_type());
    put(out, 1, logsumexp);
  };
}

Kernel attention_backward_math(const Arguments& a, Dropout dropout) {
  return [op = Attention(a, dropout), grad = a.operand("grad"), output = a.operand("output"),
          logsumexp = a.operand("logsumexp"),
          bias_wanted = a.flag("bias_grad", false)](Operands in, Results out, const Draw& draw) {
    // logsumexp is over all keys of the queries, not only over this operand's.
    const auto scores = op.scores(in);
    const auto probabilities = Attention::probabilities(scores, in[logsumexp]);
    const auto mask = op.p > 0 ? op.mask(scores, draw) : Tensor();
    const auto dropped = mask.defined() ? probabilities * mask : probabilities;
    const auto g = widen(in[grad]), q = widen(in[op.query]);
    const auto k = Attention::repeat_heads(in[op.key], q.size(1));
    const auto v = Attention::repeat_heads(in[op.value], q.size(1));
    auto d_probabilities = at::matmul(g, v.transpose(-2, -1));
    if (mask.defined()) d_probabilities = d_probabilities * mask;
    const auto d_scores = probabilities * (d_probabilities - (g * widen(in[output])).sum(-1, true));
    // Gradients of repeated heads add up.
    const auto fold = [](const Tensor& t, const Tensor& like) {
      const auto groups = like.size(1);
      return t.reshape({t.size(0), groups, t.size(1) / groups, t.size(2), t.size(3)})
          .sum(2)
          .to(like.scalar_type());
    };
    out[0] = (at::matmul(d_scores, k) * op.scale).to(in[op.query].scalar_type());
    out[1] = fold(at::matmul(d_scores.transpose(-2, -1), q) * op.scale, in[op.key]);
    out[2] = fold(at::matmul(dropped.transpose(-2, -1), g), in[op.value]);
    if (bias_wanted) {
      const auto& b = in[op.bias];
      put(out, 3, at::sum_to(d_scores, b.sizes()).to(b.scalar_type()));
    }
  };
}

namespace {

// Averages the outputs, weighted by the sums of exponentials.
Kernel merge_attention(const Arguments& a) {
  return [self = a.operand("self"), logsumexp = a.operand("logsumexp"), other = a.operand("other"),
          other_logsumexp = a.operand("other_logsumexp"),
          dtype = result_type(a)](Operands in, Results out, const Draw&) {
    const auto sum = at::logaddexp(in[logsumexp], in[other_logsumexp]);
    const auto weighed = [&](const Tensor& output, const Tensor& own) {
      const auto weight = at::where(at::isinf(sum), at::zeros({}, sum.options()),
                                    (own - sum).exp());
      return output.to(dtype) * weight.unsqueeze(-1);
    };
    out[0] = weighed(in[self], in[logsumexp]) + weighed(in[other], in[other_logsumexp]);
    put(out, 1, sum);
  };
}

Kernel attention(const Arguments& a) { return attention_math(a, exec::dropout); }
Kernel attention_backward(const Arguments& a) { return attention_backward_math(a, exec::dropout); }

// ---- Rotary embeddings

// Returns x with the halves of its last dim swapped and one of them negated.
Tensor turned(const Tensor& x, bool backward) {
  const auto halves = x.chunk(2, -1);
  return backward ? at::cat({halves[1], -halves[0]}, -1) : at::cat({-halves[1], halves[0]}, -1);
}

Kernel rotary(const Arguments& a) {
  return [self = a.operand("self"), cos = a.operand("cos"), sin = a.operand("sin")](
             Operands in, Results out, const Draw&) {
    const auto x = widen(in[self]);
    out[0] = (x * widen(in[cos]) + turned(x, false) * widen(in[sin])).to(in[self].scalar_type());
  };
}
Kernel rotary_backward(const Arguments& a) {
  return [grad = a.operand("grad"), cos = a.operand("cos"), sin = a.operand("sin")](
             Operands in, Results out, const Draw&) {
    const auto g = widen(in[grad]);
    out[0] = (g * widen(in[cos]) + turned(g * widen(in[sin]), true)).to(in[grad].scalar_type());
  };
}

// ---- SwiGLU

Kernel swiglu(const Arguments& a) {
  return [gate = a.operand("gate"), up = a.operand("up")](Operands in, Results out, const Draw&) {
    out[0] = (at::silu(widen(in[gate])) * widen(in[up])).to(in[gate].scalar_type());
  };
}
Kernel swiglu_backward(const Arguments& a) {
  return [grad = a.operand("grad"), gate = a.operand("gate"), up = a.operand("up")](
             Operands in, Results out, const Draw&) {
    const auto g = widen(in[grad]), x = widen(in[gate]);
    const auto s = at::sigmoid(x);
    const auto slope = s * (1 + x * (1 - s));
    out[0] = (g * widen(in[up]) * slope).to(in[gate].scalar_type());
    put(out, 1, (g * x * s).to(in[up].scalar_type()));
  };
}

// ---- GELU's gradient, with the sum of its rows

Kernel gelu_backward_sum(const Arguments& a) {
  return [grad = a.operand("grad_output"), self = a.operand("self"),
          form = a.text("approximate", "none")](Operands in, Results out, const Draw&) {
    const auto type = in[self].scalar_type();
    const auto d = at::gelu_backward(widen(in[grad]), widen(in[self]), form);
    out[0] = d.to(type);
    put(out, 1, at::sum_to(d, at::IntArrayRef{d.size(-1)}).to(type));
  };
}

Kernel activated_product(const Arguments& a) {
  return compose_product(a, [](const Op& op) {
    auto kernel = reference_op(op);
    return kernel ? kernel : dispatcher_kernel(op);
  });
}

// ---- RMS norm

Kernel rms_norm(const Arguments& a) {
  return [self = a.operand("self"), weight = a.optional_operand("weight"), eps = a.number("eps"),
          type = a.wanted(0) ? std::optional(result_type(a)) : std::nullopt,
          rstd_type = a.wanted(1) ? std::optional(result_type(a, 1)) : std::nullopt](
             Operands in, Results out, const Draw&) {
    const auto x = widen(in[self]);
    const auto rstd = (x.square().mean(-1, true) + eps).rsqrt();
    auto y = x * rstd;
    if (weight >= 0) y = y * widen(in[weight]);
    out[0] = y.to(type.value_or(in[self].scalar_type()));
    put(out, 1, rstd_type ? rstd.to(*rstd_type) : rstd);
  };
}

Kernel rms_norm_backward(const Arguments& a) {
  return [grad = a.operand("grad"), self = a.operand("self"), weight = a.optional_operand("weight"),
          saved = a.operand("rstd")](Operands in, Results out, const Draw&) {
    const auto g = widen(in[grad]), x = widen(in[self]);
    const auto normal = x * in[saved].to(x.scalar_type());
    const auto scaled = weight >= 0 ? g * widen(in[weight]) : g;
    const auto mean = (scaled * normal).mean(-1, true);
    out[0] = ((scaled - normal * mean) * in[saved].to(x.scalar_type())).to(in[self].scalar_type());
    if (weight >= 0) {
      put(out, 1, at::sum_to(g * normal, in[weight].sizes()).to(in[weight].scalar_type()));
    }
  };
}

// ---- losses

struct Labels {
  int target, weight;
  int64_t ignore_index;

  explicit Labels(const Arguments& a)
      : target(a.operand("target")),
        weight(a.optional_operand("weight")),
        ignore_index(a.integer("ignore_index", -100)) {}

  Tensor kept(Operands in) const { return in[target] != ignore_index; }
  // Returns the labels, with 0 for ignored ones.
  Tensor safe(Operands in) const { return in[target].masked_fill(in[target] == ignore_index, 0); }
  // Returns each label's weight; 0 for ignored ones.
  Tensor weights(Operands in, at::ScalarType type) const {
    const auto kept_ones = kept(in).to(type);
    if (weight < 0) return kept_ones;
    const auto safe_labels = safe(in);
    return kept_ones *
           in[weight].to(type).index_select(0, safe_labels.flatten()).view(safe_labels.sizes());
  }
};

Kernel cross_entropy(const Arguments& a) {
  return [labels = Labels(a), logits = a.operand("logits"),
          smoothing = a.number("label_smoothing", 0.0),
          type = a.wanted(0) ? std::optional(result_type(a)) : std::nullopt](
             Operands in, Results out, const Draw&) {
    const auto x = widen(in[logits]);
    const auto logsumexp = x.logsumexp(1);
    const auto logp = x - logsumexp.unsqueeze(1);
    auto losses = -logp.gather(1, labels.safe(in).unsqueeze(1)).squeeze(1) *
                  labels.weights(in, x.scalar_type());
    if (smoothing > 0) {
      const auto weighted = labels.weight >= 0 ? logp * widen(in[labels.weight]) : logp;
      const auto smooth = -weighted.sum(1) * labels.kept(in);
      losses = losses * (1 - smoothing) + smooth * (smoothing / static_cast<double>(x.size(1)));
    }
    // An ignored label's loss is 0 even where its logits are not finite.
    out[0] = losses.masked_fill(labels.kept(in).logical_not(), 0)
                 .to(type.value_or(in[logits].scalar_type()));
    put(out, 1, logsumexp);
  };
}

Kernel cross_entropy_backward(const Arguments& a) {
  return [labels = Labels(a), grad = a.operand("grad"), logits = a.operand("logits"),
          smoothing = a.number("label_smoothing", 0.0)](Operands in, Results out, const Draw&) {
    const auto x = widen(in[logits]);
    const auto p = (x - x.logsumexp(1, true)).exp();
    const auto classes = x.size(1);
    const auto one_hot = at::zeros_like(x).scatter(1, labels.safe(in).unsqueeze(1), 1.0);
    // d loss / d logp, then through the softmax.
    auto d_logp = -one_hot * labels.weights(in, x.scalar_type()).unsqueeze(1) * (1 - smoothing);
    if (smoothing > 0) {
      auto smooth = at::ones_like(x) * (-smoothing / static_cast<double>(classes));
      if (labels.weight >= 0) smooth = smooth * widen(in[labels.weight]);
      d_logp = d_logp + smooth * labels.kept(in).unsqueeze(1);
    }
    d_logp = d_logp * widen(in[grad]).to(x.scalar_type()).unsqueeze(1);
    const auto d = d_logp - p * d_logp.sum(1, true);
    out[0] =
        d.masked_fill(labels.kept(in).logical_not().unsqueeze(1), 0).to(in[logits].scalar_type());
  };
}

Kernel nll(const Arguments& a) {
  return [labels = Labels(a), self = a.operand("self")](Operands in, Results out, const Draw&) {
    const auto picked = in[self].gather(1, labels.safe(in).unsqueeze(1)).squeeze(1);
    const auto losses = -picked * labels.weights(in, in[self].scalar_type());
    out[0] = losses.masked_fill(labels.kept(in).logical_not(), 0);
  };
}

Kernel nll_backward(const Arguments& a) {
  return [labels = Labels(a), grad = a.operand("grad"), self = a.operand("self")](
             Operands in, Results out, const Draw&) {
    const auto d = (-in[grad] * labels.weights(in, in[self].scalar_type()))
                       .masked_fill(labels.kept(in).logical_not(), 0);
    out[0] = at::zeros_like(in[self]).scatter(1, labels.safe(in).unsqueeze(1),
                                              d.to(in[self].scalar_type()).unsqueeze(1));
  };
}

Kernel label_weight(const Arguments& a) {
  return [labels = Labels(a), type = result_type(a)](Operands in, Results out, const Draw&) {
    out[0] = labels.weights(in, type).sum();
  };
}

using Maker = Kernel (*)(const Arguments&);
const std::map<std::string_view, Maker> kOps = {
    {"aten::_scaled_mm", scaled_product},
    {"aten::native_layer_norm", layer_norm},
    {"aten::native_layer_norm_backward", layer_norm_backward},
    {"perigee::addmm_", product_in_place},
    {"perigee::embedding_backward_", embedding_backward_in_place},
    {"perigee::mm_", product_in_place},
    {"perigee::reshape", reshape},
    {"perigee::expand", expand},
    {"perigee::full", full},
    {"perigee::cast", cast},
    {"perigee::random", random},
    {"perigee::dropout", dropout_op},
    {"perigee::attention", attention},
    {"perigee::attention_backward", attention_backward},
    {"perigee::cached_attention", cached_attention},
    {"perigee::merge_attention", merge_attention},
    {"perigee::fp8", fp8},
    {"perigee::fp8_cast", fp8_cast},
    {"perigee::fp8_cast_amax", fp8_cast},
    {"perigee::fp8_blocks", fp8_blocks},
    {"perigee::fp8_rows", fp8_rows},
    {"perigee::fp8_cast_rows", fp8_cast_rows},
    {"perigee::fp8_amax_rows", fp8_amax_rows},
    {"perigee::fp8_amax", fp8_amax},
    {"perigee::fp8_scale", fp8_scale},
    {"perigee::fp8_history", fp8_history},
    {"perigee::fp8_held", fp8_held},
    {"perigee::rotary", rotary},
    {"perigee::rotary_backward", rotary_backward},
    {"perigee::swiglu", swiglu},
    {"perigee::swiglu_backward", swiglu_backward},
    {"perigee::rms_norm", rms_norm},
    {"perigee::rms_norm_backward", rms_norm_backward},
    {"perigee::add_rms_norm", add_rms_norm},
    {"perigee::rms_norm_backward_add", rms_norm_backward_add},
    {"perigee::add_layer_norm", add_layer_norm},
    {"perigee::layer_norm_backward_add", layer_norm_backward},
    {"perigee::gelu_backward_sum", gelu_backward_sum},
    {"perigee::mm_gelu", activated_product},
    {"perigee::mm_gelu_backward", activated_product},
    {"perigee::cross_entropy", cross_entropy},
    {"perigee::cross_entropy_backward", cross_entropy_backward},
    {"perigee::nll", nll},
    {"perigee::nll_backward", nll_backward},
    {"perigee::label_weight", label_weight},
    {"perigee::step_average", step_average},
    {"perigee::step_share", step_average},
    {"perigee::reduction", step_average},
    {"perigee::adafactor_", adafactor},
    {"perigee::adafactor_moments_", adafactor_moments},
    {"perigee::adafactor_sums_", adafactor_sums},
    {"perigee::muon_", muon},
    {"perigee::muon_update_", muon_update},
    {"perigee::orthogonalize_", orthogonalize},
};

}  // namespace

Kernel reference_op(const Op& op) {
  const auto found = kOps.find(op.name);
  return found == kOps.end() ? expert_op(op) : found->second(Arguments(op));
}

Distribution distribution_of(const Arguments& a) {
  using Kind = Distribution::Kind;
  const auto kind = a.text("kind");
  if (kind == "uniform") return {Kind::uniform, a.number("low", 0.0), a.number("high", 1.0)};
  if (kind == "normal") return {Kind::normal, a.number("mean", 0.0), a.number("std", 1.0)};
  if (kind == "bernoulli") return {Kind::bernoulli, a.number("p"), 0};
  if (kind == "integer") return {Kind::integer, a.number("low", 0.0), a.number("high")};
  if (kind == "exponential") return {Kind::exponential, 0, 0};
  fail("exec",
       "perigee::random draws uniform, normal, bernoulli, integer or exponential numbers, "
       "but got \"{}\"",
       kind);
}

}  // namespace perigee::exec
