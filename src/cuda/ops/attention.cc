#include <ATen/ATen.h>

#include "cuda/ops/attention_path.h"
#include "cuda/ops/ops.h"
#include "exec/reference/ops.h"

namespace perigee::cuda {
namespace {

using at::Tensor;
using Operands = std::span<const Tensor>;
using Results = std::span<Tensor>;

using Path = AttentionPath;

struct Attention {
  int query, key, value, bias, documents;
  bool causal, deterministic, on_gpu;
  int capability;
  double scale;

  Attention(const Arguments& a, const OpContext& context)
      : query(a.operand("query")),
        key(a.operand("key")),
        value(a.operand("value")),
        bias(a.optional_operand("bias")),
        documents(a.optional_operand("documents")),
        causal(a.flag("causal", false)),
        deterministic(context.deterministic),
        on_gpu(context.place.is_cuda()),
        capability(context.capability),
        scale(a.number("scale")) {}

  Path path(Operands in) const {
    const auto &q = in[query], &k = in[key], &v = in[value];
    // Tests run this folder's kernels on the host, where LibTorch has none of the fused ones.
    if (!on_gpu || q.numel() == 0 || v.numel() == 0) return Path::math;
    return attention_path({.type = q.scalar_type(),
                           .queries = q.size(2),
                           .keys = k.size(2),
                           .query_width = q.size(3),
                           .value_width = v.size(3),
                           .causal = causal,
                           .bias = bias >= 0,
                           .documents = documents >= 0,
                           .capability = capability,
                           .deterministic = deterministic});
  }

  // Returns keys or values repeated to one head per query head.
  static Tensor heads(const Tensor& t, int64_t wanted) {
    return t.size(1) == wanted ? aligned_rows(t) : t.repeat_interleave(wanted / t.size(1), 1);
  }

  // Returns the gradient of grouped heads: the sum over their repeated heads.
  static Tensor fold(const Tensor& t, int64_t groups) {
    if (t.size(1) == groups) return t;
    return t.unflatten(1, {groups, t.size(1) / groups}).sum(2);
  }
};

}  // namespace

Kernel attention(const Arguments& a, const OpContext& context) {
  auto math = exec::attention_math(a, drop_elements);
  if (a.number("p", 0.0) > 0) return math;
  return [flash = Attention(a, context), math](Operands in, Results out, const Draw& draw) {
    const auto path = flash.path(in);
    if (path == Path::math) return math(in, out, draw);
    const auto q = aligned_rows(in[flash.query]);
    const auto k = Attention::heads(in[flash.key], q.size(1));
    const auto v = Attention::heads(in[flash.value], q.size(1));
    Tensor logsumexp;
    if (path == Path::flash) {
      auto result = at::_scaled_dot_product_flash_attention(q, k, v, 0.0, flash.causal, false,
                                                            flash.scale);
      out[0] = std::get<0>(result);
      logsumexp = std::get<1>(result);
    } else if (path == Path::cudnn) {
      auto result = at::_scaled_dot_product_cudnn_attention(q, k, v, {}, true, 0.0, flash.causal,
                                                            false, flash.scale);
      out[0] = std::get<0>(result);
      logsumexp = std::get<1>(result).squeeze(3);
    } else {
      auto result = at::_scaled_dot_product_efficient_attention(q, k, v, {}, true, 0.0,
                                                                flash.causal, flash.scale);
      out[0] = std::get<0>(result);
      logsumexp = std::get<1>(result).narrow(2, 0, q.size(2));
    }
    if (out.size() > 1) out[1] = std::move(logsumexp);
  };
}

Kernel attention_backward(const Arguments& a, const OpContext& context) {
  auto math = exec::attention_backward_math(a, drop_elements);
  if (a.number("p", 0.0) > 0) return math;
  return [flash = Attention(a, context), grad = a.operand("grad"), output = a.operand("output"),
          saved = a.operand("logsumexp"), math](Operands in, Results out, const Draw& draw) {
    const auto path = flash.path(in);
    if (path == Path::math) return math(in, out, draw);
    const auto q = aligned_rows(in[flash.query]);
    const auto k = Attention::heads(in[flash.key], q.size(1));
    const auto v = Attention::heads(in[flash.value], q.size(1));
    const auto g = aligned_rows(in[grad]), o = aligned_rows(in[output]);
    const auto logsumexp = in[saved].contiguous();
    Tensor d_query, d_key, d_value;
    if (path == Path::cudnn) {
      // Read with dropout only.
      const auto none = at::empty({}, q.options().dtype(at::kLong));
      std::tie(d_query, d_key, d_value) = at::_scaled_dot_product_cudnn_attention_backward(
          g, q, k, v, o, logsumexp.unsqueeze(3), none, none, {}, {}, {}, q.size(2), k.size(2), 0.0,
          flash.causal, flash.scale);
    } else if (path == Path::flash) {
      // Read with dropout only.
      const auto no_seed = at::empty({2}, q.options().dtype(at::kUInt64));
      const auto no_offset = at::empty({}, q.options().dtype(at::kUInt64));
      std::tie(d_query, d_key, d_value) = at::_scaled_dot_product_flash_attention_backward(
          g, q, k, v, o, logsumexp, {}, {}, q.size(2), k.size(2), 0.0, flash.causal, no_seed,
          no_offset, flash.scale);
    } else {
      const auto no_seed = at::empty({}, q.options().dtype(at::kLong));
      std::tie(d_query, d_key, d_value, std::ignore) =
          at::_scaled_dot_product_efficient_attention_backward(
              g, q, k, v, {}, position_major(o), padded_logsumexp(logsumexp), no_seed, no_seed, 0.0,
              {true, true, true, false}, flash.causal, flash.scale);
    }
    const auto groups = in[flash.key].size(1);
    out[0] = std::move(d_query);
    out[1] = Attention::fold(d_key, groups);
    out[2] = Attention::fold(d_value, groups);
  };
}

}  // namespace perigee::cuda
