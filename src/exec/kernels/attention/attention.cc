#include <ATen/ATen.h>

#include <tuple>

#include "exec/kernels/attention/attention_rows.h"
#include "exec/kernels/attention/blocked_attention.h"
#include "exec/kernels/kernels.h"
#include "exec/ops/random_op.h"
#include "exec/reference/ops.h"

namespace perigee::exec::kernels {
namespace {

using at::Tensor;

// Positions of the operands, and the options of attention without a bias.
struct Flash {
  int query, key, value, bias, documents, key_documents;
  bool causal;
  double scale;

  explicit Flash(const Arguments& a)
      : query(a.operand("query")),
        key(a.operand("key")),
        value(a.operand("value")),
        bias(a.optional_operand("bias")),
        documents(a.optional_operand("documents")),
        key_documents(a.optional_operand("key_documents")),
        causal(a.flag("causal", false)),
        scale(a.number("scale")) {}

  // Depends on shapes and types only, so that an op always takes the same path.
  bool applies(std::span<const Tensor> in) const {
    const auto& q = in[query];
    const auto& v = in[value];
    return q.size(3) == v.size(3) && q.numel() > 0 && v.numel() > 0 && bias < 0 && documents < 0;
  }

  // Returns whether the kernels by blocks of rows serve the op.
  bool by_rows(std::span<const Tensor> in) const {
    if (bias >= 0) return false;
    const auto &q = in[query], &k = in[key], &v = in[value];
    if (documents < 0) return q.scalar_type() != at::kDouble && takes_rows(q, k, v);
    return q.numel() > 0 && k.numel() > 0 && v.numel() > 0;
  }

  // Returns whether the kernels by microkernels serve what blocks of rows would; they are faster.
  bool by_blocks(const Tensor& q, const Tensor& k, const Tensor& v) const {
    return documents < 0 && takes_blocks(q, k, v);
  }

  BlockedAttention block_options() const {
    return {.causal = causal, .scale = static_cast<float>(scale)};
  }

  RowAttention row_options(std::span<const Tensor> in) const {
    RowAttention options{.causal = causal, .scale = scale};
    if (documents < 0) return options;
    options.documents = in[documents].contiguous();
    options.key_documents = in[key_documents].contiguous();
    return options;
  }

  // The kernels take any strides, except that rows must be contiguous.
  static Tensor rows(const Tensor& t) {
    return t.stride(3) == 1 && t.stride(2) >= t.size(3) ? t : t.contiguous();
  }

  // Returns keys or values repeated to one head per query head.
  static Tensor heads(const Tensor& t, int64_t wanted) {
    return t.size(1) == wanted ? rows(t) : t.repeat_interleave(wanted / t.size(1), 1);
  }

  // Returns the gradient of grouped heads: the sum over their repeated heads.
  static Tensor fold(const Tensor& t, int64_t groups) {
    if (t.size(1) == groups) return t;
    return t.unflatten(1, {groups, t.size(1) / groups}).sum(2);
  }
};

}  // namespace

Kernel attention(const Arguments& a) {
  if (a.number("p", 0.0) > 0) return {};
  return [flash = Flash(a), math = reference_op(a.op())](std::span<const Tensor> in,
                                                         std::span<Tensor> out, const Draw& draw) {
    if (flash.by_rows(in)) {
      const auto q = Flash::rows(in[flash.query]), k = Flash::rows(in[flash.key]),
                 v = Flash::rows(in[flash.value]);
      auto [output, logsumexp] = flash.by_blocks(q, k, v)
                                     ? blocked_attention(q, k, v, flash.block_options())
                                     : attention_rows(q, k, v, flash.row_options(in));
      out[0] = std::move(output);
      if (out.size() > 1) out[1] = std::move(logsumexp);
      return;
    }
    if (!flash.applies(in)) return math(in, out, draw);
    const auto q = Flash::rows(in[flash.query]);
    auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        q, Flash::heads(in[flash.key], q.size(1)), Flash::heads(in[flash.value], q.size(1)), 0.0,
        flash.causal, {}, flash.scale);
    out[0] = std::move(output);
    if (out.size() > 1) out[1] = std::move(logsumexp);
  };
}

Kernel attention_backward(const Arguments& a) {
  if (a.number("p", 0.0) > 0) return {};
  return [flash = Flash(a), grad = a.operand("grad"), output = a.operand("output"),
          logsumexp = a.operand("logsumexp"), math = reference_op(a.op())](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    if (flash.by_rows(in)) {
      const auto q = Flash::rows(in[flash.query]), k = Flash::rows(in[flash.key]),
                 v = Flash::rows(in[flash.value]);
      const auto d_out = Flash::rows(in[grad].to(q.scalar_type())),
                 out_rows = Flash::rows(in[output]);
      std::tie(out[0], out[1],
               out[2]) = flash.by_blocks(q, k, v)
                             ? blocked_attention_backward(d_out, q, k, v, out_rows, in[logsumexp],
                                                          flash.block_options())
                             : attention_rows_backward(d_out, q, k, v, out_rows, in[logsumexp],
                                                       flash.row_options(in));
      return;
    }
    if (!flash.applies(in)) return math(in, out, draw);
    const auto q = Flash::rows(in[flash.query]);
    const auto groups = in[flash.key].size(1);
    auto [d_query, d_key, d_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        Flash::rows(in[grad]), q, Flash::heads(in[flash.key], q.size(1)),
        Flash::heads(in[flash.value], q.size(1)), Flash::rows(in[output]), in[logsumexp], 0.0,
        flash.causal, {}, flash.scale);
    out[0] = std::move(d_query);
    out[1] = Flash::fold(d_key, groups);
    out[2] = Flash::fold(d_value, groups);
  };
}

Kernel dropout(const Arguments& a) {
  const RandomArguments random(a, a.type().shape);
  return [random, self = a.operand("self"), p = a.number("p")](
             std::span<const Tensor> in, std::span<Tensor> out, const Draw& draw) {
    const auto from = in[self].contiguous();
    out[0] = at::empty(from.sizes(), from.options());
    exec::dropout(from, out[0], p, random.stream(draw), random.block(draw));
  };
}

}  // namespace perigee::exec::kernels
