#include "plan/precision.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"

namespace perigee::plan {
namespace {

using graph::DType;

// The lists are sorted, by op without namespace and overload. Composites of LibTorch's lists
// (linear, layer_norm, softmax) are listed with the ops that they become in a graph; those that
// become several other ops (cosine_similarity, kl_div) are not listed: their parts follow operands.

// AT_FORALL_LOWER_PRECISION_FP.
constexpr std::string_view low_ops[] = {
    "_convolution",  "_prelu_kernel", "addbmm", "addmm",       "addmv",    "addr",
    "attention",     "baddbmm",       "bmm",    "convolution", "conv_tbc", "grouped_mm",
    "grouped_outer", "linalg_vecdot", "linear", "matmul",      "mm",       "mv",
    "prelu",
};

// AT_FORALL_FP32, AT_FORALL_FP32_SET_OPT_DTYPE and the
// norms of AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE.
constexpr std::string_view full_ops[] = {
    "_cdist_forward",
    "_log_softmax",
    "_pdist_forward",
    "_softmax",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
    "acos",
    "add_layer_norm",
    "asin",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cosh",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "dist",
    "erfinv",
    "exp",
    "expm1",
    "huber_loss",
    "linalg_vector_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "logsumexp",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "native_group_norm",
    "native_layer_norm",
    "nll",
    "nll_loss2d_forward",
    "nll_loss_forward",
    "norm",
    "pow",
    "prod",
    "reciprocal",
    "renorm",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softplus",
    "sum",
    "tan",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
};

// AT_FORALL_PROMOTE.
constexpr std::string_view widest_ops[] = {
    "addcdiv",         "addcmul",         "atan2",     "bilinear",    "cross", "dot",
    "grid_sampler_2d", "grid_sampler_3d", "index_put", "scatter_add", "vdot",
};

constexpr std::string_view losses[] = {
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "nll",
    "nll_loss2d_forward",
    "nll_loss_forward",
    "smooth_l1_loss",
    "soft_margin_loss",
};

template <size_t n>
constexpr bool sorted(const std::string_view (&list)[n]) {
  return std::is_sorted(std::begin(list), std::end(list));
}
static_assert(sorted(full_ops) && sorted(widest_ops) && sorted(losses));

template <size_t n>
bool holds(const std::string_view (&list)[n], std::string_view op) {
  return std::find(std::begin(list), std::end(list), op) != std::end(list);
}

// "aten::add.Tensor" -> "add".
std::string_view bare(std::string_view op) {
  if (const auto colons = op.find("::"); colons != op.npos) op.remove_prefix(colons + 2);
  return op.substr(0, op.find('.'));
}

void check_names(const char* what, const std::vector<std::string>& names,
                 const std::vector<std::string>& known, std::vector<std::string>& seen) {
  for (const auto& name : names) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      fail("plan", "precision.{} names ops or scopes of the graph, but got \"{}\"{}", what, name,
           did_you_mean(name, known));
    }
    if (std::find(seen.begin(), seen.end(), name) != seen.end()) {
      fail("plan", "each name is in one list of precision, but precision.{} repeats \"{}\"", what,
           name);
    }
    seen.push_back(name);
  }
}

void verify(const LossScale& scale) {
  if (scale.kind == LossScale::Kind::none) return;
  const auto positive = [](double x) { return std::isfinite(x) && x > 0; };
  if (!positive(scale.init_scale)) {
    fail("plan", "precision.loss_scale.init_scale is above 0, but got {}", scale.init_scale);
  }
  if (scale.kind != LossScale::Kind::dynamic) return;
  if (!(positive(scale.growth_factor) && scale.growth_factor > 1)) {
    fail("plan", "precision.loss_scale.growth_factor is above 1, but got {}", scale.growth_factor);
  }
  if (!(positive(scale.backoff_factor) && scale.backoff_factor < 1)) {
    fail("plan", "precision.loss_scale.backoff_factor is between 0 and 1, but got {}",
         scale.backoff_factor);
  }
  if (scale.growth_interval < 1) {
    fail("plan", "precision.loss_scale.growth_interval is at least 1, but got {}",
         scale.growth_interval);
  }
  if (!(std::isfinite(scale.min_scale) && scale.min_scale >= 0 &&
        scale.min_scale <= scale.init_scale)) {
    fail("plan", "precision.loss_scale.min_scale is from 0 to init_scale ({}), but got {}",
         scale.init_scale, scale.min_scale);
  }
  if (scale.hysteresis < 1) {
    fail("plan", "precision.loss_scale.hysteresis is at least 1, but got {}", scale.hysteresis);
  }
}

}  // namespace

Rounding built_in_rounding(std::string_view op, Precision::Parameters parameters) {
  const auto name = bare(op);
  if (holds(low_ops, name)) return Rounding::low;
  if (parameters != Precision::Parameters::as_captured) {
    return is_norm(op) || holds(losses, name) ? Rounding::full : Rounding::follow;
  }
  if (holds(full_ops, name)) return Rounding::full;
  if (holds(widest_ops, name)) return Rounding::widest;
  return Rounding::follow;
}

bool is_norm(std::string_view op) {
  return bare(op) == "native_layer_norm" || bare(op) == "native_group_norm" ||
         bare(op) == "add_layer_norm";
}

void verify(const Precision& precision, const graph::Graph& graph) {
  if (precision.dtype && !graph::is_half(*precision.dtype)) {
    fail("plan", "precision.dtype is float16 or bfloat16, but got {}",
         graph::name_of(*precision.dtype));
  }
  const bool as_captured = precision.parameters == Precision::Parameters::as_captured;
  const bool rounds = !as_captured || precision.gradients || !precision.allow.empty() ||
                      !precision.deny.empty() || !precision.promote.empty() ||
                      !precision.scopes.empty();
  if (rounds && !precision.dtype) fail("plan", "precision.dtype is needed, but is missing");
  if (precision.gradients && (as_captured || (*precision.gradients != *precision.dtype &&
                                              *precision.gradients != DType::float32))) {
    fail("plan",
         "precision.gradients is precision.dtype or float32, for parameters that are not as "
         "captured, but got {}",
         graph::name_of(*precision.gradients));
  }
  if (precision.parameters == Precision::Parameters::low && *precision.dtype != DType::bfloat16) {
    fail("plan", "parameters without a float32 master are bfloat16, but got {}",
         graph::name_of(*precision.dtype));
  }
  std::vector<std::string> ops, scopes, seen;
  for (const auto& node : graph.nodes) ops.push_back(node.op);
  for (const auto& scope : graph.scopes) scopes.push_back(scope.path);
  check_names("allow", precision.allow, ops, seen);
  check_names("deny", precision.deny, ops, seen);
  check_names("promote", precision.promote, ops, seen);
  seen.clear();
  check_names("scopes", precision.scopes, scopes, seen);
  if (!as_captured && !precision.scopes.empty()) {
    fail("plan", "precision.scopes limit ops where parameters are as captured, but they are {}",
         name_of(precision.parameters));
  }
  verify(precision.loss_scale);
}

std::string_view name_of(LossScale::Kind kind) {
  constexpr std::string_view names[] = {"none", "fixed", "dynamic", "given"};
  return names[static_cast<int>(kind)];
}

std::string_view name_of(Precision::Parameters parameters) {
  constexpr std::string_view names[] = {"as_captured", "masters", "low"};
  return names[static_cast<int>(parameters)];
}

}  // namespace perigee::plan
