// Scaled dot product attention stays one op forward and one backward.
#include "capture/composites/attention.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

#include "capture/composites/composite.h"

namespace perigee::tracing {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

struct Settings {
  bool causal = false;
  double scale = 1, p = 0;
  int64_t random_key = 0;
};

// Places of what a backward pass reads.
enum Saved : uint8_t { kQuery, kKey, kValue, kBias, kDocuments, kOutput, kLogsumexp };

// `documents` are those of the queries and of the keys.
std::tuple<at::Tensor, at::Tensor> call_forward(const at::Tensor& query, const at::Tensor& key,
                                                const at::Tensor& value, const OptionalTensor& bias,
                                                const OptionalTensor& documents,
                                                const Settings& s) {
  static const auto op = typed_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const OptionalTensor&, bool, double,
      double, int64_t, const OptionalTensor&, const OptionalTensor&)>("perigee::attention");
  return op.call(query, key, value, bias, s.causal, s.scale, s.p, s.random_key, documents,
                 documents);
}

variable_list call_backward(const at::Tensor& grad, const variable_list& saved, const Settings& s,
                            bool bias_grad) {
  static const auto op = typed_op<std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&,
      const OptionalTensor&, const at::Tensor&, const at::Tensor&, bool, double, double, int64_t,
      bool, const OptionalTensor&, const OptionalTensor&)>("perigee::attention_backward");
  const auto documents = optional(saved[kDocuments]);
  auto [d_query, d_key, d_value, d_bias] = op.call(
      grad, saved[kQuery], saved[kKey], saved[kValue], optional(saved[kBias]), saved[kOutput],
      saved[kLogsumexp], s.causal, s.scale, s.p, s.random_key, bias_grad, documents, documents);
  return {d_query, d_key, d_value, d_bias, {}, {}, {}, {}, {}};
}

// Returns which keys are of each query's document, [b, 1, s, s].
at::Tensor same_document(const at::Tensor& documents) {
  return documents.unsqueeze(1).unsqueeze(-1).eq(documents.unsqueeze(1).unsqueeze(-2));
}

// Composed of ordinary ops, so that the derivative can be differentiated again.
variable_list backward_in_parts(const at::Tensor& grad, const variable_list& saved,
                                const Settings& s, bool bias_grad) {
  if (s.p > 0) {
    fail("capture", "attention with dropout has no second derivative, but got p = {}{}", s.p,
         Session::current()->where());
  }
  const auto &query = saved[kQuery], &bias = saved[kBias];
  const int64_t b = query.size(0), h = query.size(1), groups = saved[kKey].size(1);
  const auto grouped = [&](const at::Tensor& x) {
    return x.unsqueeze(2).expand({b, groups, h / groups, x.size(2), x.size(3)}).flatten(1, 2);
  };
  const auto summed = [&](const at::Tensor& x) {
    return x.view({b, groups, h / groups, x.size(2), x.size(3)}).sum(2);
  };
  const auto key = grouped(saved[kKey]), value = grouped(saved[kValue]);
  auto scores = query.matmul(key.transpose(-2, -1)) * s.scale;
  if (bias.defined()) scores = scores + bias;
  if (saved[kDocuments].defined()) {
    scores = scores.masked_fill(same_document(saved[kDocuments]).logical_not(),
                                -std::numeric_limits<double>::infinity());
  }
  if (s.causal) {
    const auto future =
        at::ones({scores.size(-2), scores.size(-1)}, query.options().dtype(at::kBool)).triu(1);
    scores = scores.masked_fill(future, -std::numeric_limits<double>::infinity());
  }
  const auto weights = scores.softmax(-1);
  const auto d_weights = grad.matmul(value.transpose(-2, -1));
  const auto d_scores = weights * (d_weights - (d_weights * weights).sum(-1, true));
  return {d_scores.matmul(key) * s.scale,
          summed(d_scores.transpose(-2, -1).matmul(query) * s.scale),
          summed(weights.transpose(-2, -1).matmul(grad)),
          bias_grad ? at::sum_to(d_scores, bias.sizes()) : at::Tensor(),
          {},
          {},
          {},
          {},
          {}};
}

struct Attention : torch::autograd::Function<Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& query,
                            const at::Tensor& key, const at::Tensor& value,
                            const OptionalTensor& bias, const OptionalTensor& documents,
                            bool causal, double scale, double p, int64_t random_key) {
    at::AutoDispatchBelowADInplaceOrView below;
    auto [output, logsumexp] = call_forward(query, key, value, bias, documents,
                                            {causal, scale, p, random_key});
    context->save_for_backward(
        {query, key, value, tensor_or_none(bias), tensor_or_none(documents), output, logsumexp});
    context->saved_data["causal"] = causal;
    context->saved_data["scale"] = scale;
    context->saved_data["p"] = p;
    context->saved_data["random_key"] = random_key;
    return output;
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    auto& data = context->saved_data;
    const Settings settings{data["causal"].toBool(), data["scale"].toDouble(), data["p"].toDouble(),
                            data["random_key"].toInt()};
    const bool bias_grad = saved[kBias].defined() && context->needs_input_grad(kBias);
    return at::GradMode::is_enabled() ? backward_in_parts(grads[0], saved, settings, bias_grad)
                                      : call_backward(grads[0], saved, settings, bias_grad);
  }
};

// [.., h, s, d] in four dims: missing leading dims are 1, surplus ones are merged.
at::Tensor four_dims(const at::Tensor& x) {
  if (x.dim() == 4) return x;
  if (x.dim() > 4) return x.flatten(0, x.dim() - 4);
  return x.dim() == 3 ? x.unsqueeze(0) : x.unsqueeze(0).unsqueeze(0);
}

// Returns the mask as a summand of the scores: a mask of bools becomes 0 (attended) or -inf.
at::Tensor additive(const at::Tensor& mask, const at::Tensor& query) {
  if (mask.scalar_type() != at::kBool) return mask.to(query.scalar_type());
  return at::zeros(mask.sizes(), query.options())
      .masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity());
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  const OptionalTensor& mask, const OptionalTensor& documents, double p,
                  bool causal, std::optional<double> scale, bool grouped) {
  const auto shape = query.sizes();
  if (p < 0 || p > 1) {
    fail("capture", "attention's dropout probability lies in [0, 1], but got {}{}", p,
         Session::current()->where());
  }
  if (query.dim() < 2 || key.dim() != query.dim() || value.dim() != query.dim() ||
      shape.back() != key.size(-1) || key.size(-2) != value.size(-2)) {
    fail("capture",
         "attention takes query [*, s, d], key [*, t, d] and value [*, t, e], but got "
         "[{}], [{}] and [{}]{}",
         fmt::join(shape, ", "), fmt::join(key.sizes(), ", "), fmt::join(value.sizes(), ", "),
         Session::current()->where());
  }
  // Batch dims broadcast; heads do so only in groups.
  const auto lead = [&](const at::Tensor& x) {
    const auto kept = query.dim() > 2 && grouped ? 3 : 2;
    return x.sizes().slice(0, x.dim() - kept);
  };
  const auto batch = at::infer_size(at::infer_size(lead(query), lead(key)), lead(value));
  const auto broadcast = [&](const at::Tensor& x) {
    auto sizes = batch;
    for (auto size : x.sizes().slice(lead(x).size())) sizes.push_back(size);
    return four_dims(x.expand(sizes));
  };
  const auto q = broadcast(query), k = broadcast(key), v = broadcast(value);
  if (q.size(1) % k.size(1) != 0 || k.size(1) != v.size(1)) {
    fail("capture", "attention's key heads divide its query heads, but got {} and {}{}", k.size(1),
         q.size(1), Session::current()->where());
  }
  at::Tensor bias;
  if (mask && mask->defined()) {
    bias = additive(*mask, query);
    while (bias.dim() < 2) bias = bias.unsqueeze(0);
    if (query.dim() > 4 && bias.dim() > 3) {
      // Batch dims are merged, so that they cannot broadcast one by one.
      while (bias.dim() < query.dim()) bias = bias.unsqueeze(0);
      auto sizes = at::IntArrayRef(batch).slice(0, query.dim() - 3).vec();
      sizes.insert(sizes.end(), {bias.size(-3), bias.size(-2), bias.size(-1)});
      bias = bias.expand(sizes);
    }
    bias = four_dims(bias);
  }
  const auto output = Attention::apply(q, k, v, optional(bias), documents, causal,
                                       scale.value_or(1 / std::sqrt(double(query.size(-1)))), p,
                                       p > 0 ? random_key() : 0);
  auto sizes = batch;
  for (auto size : query.sizes().slice(lead(query).size())) sizes.push_back(size);
  sizes.back() = value.size(-1);
  return output.reshape(sizes);
}

at::Tensor scaled_dot_product_attention(const at::Tensor& query, const at::Tensor& key,
                                        const at::Tensor& value, const OptionalTensor& mask,
                                        double p, bool causal, std::optional<double> scale,
                                        bool grouped) {
  if (causal && mask && mask->defined()) {
    fail("capture",
         "attention takes a mask or is causal, but got both: leave is_causal out and mask later "
         "keys, too{}",
         Session::current()->where());
  }
  return attend(query, key, value, mask, {}, p, causal, scale, grouped);
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("scaled_dot_product_attention", scaled_dot_product_attention);
}

void check_documents(const at::Tensor& query, const at::Tensor& key, const at::Tensor& documents) {
  if (documents.scalar_type() == at::kLong && query.dim() == 4 && key.dim() == 4 &&
      documents.dim() == 2 && documents.size(0) == query.size(0) &&
      documents.size(1) == query.size(2) && documents.size(1) == key.size(2)) {
    return;
  }
  fail("capture",
       "attention within documents takes query and key [b, h, s, d] and documents [b, s] of int64, "
       "but got [{}], [{}] and [{}] of {}",
       fmt::join(query.sizes(), ", "), fmt::join(key.sizes(), ", "),
       fmt::join(documents.sizes(), ", "), c10::toString(documents.scalar_type()));
}

}  // namespace
}  // namespace perigee::tracing

namespace perigee {

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const AttentionSettings& s) {
  const auto& documents = s.documents;
  const auto mask = tracing::optional(s.mask);
  if (!documents.defined()) {
    return at::scaled_dot_product_attention(query, key, value, mask, s.dropout, s.causal, {},
                                            s.grouped);
  }
  tracing::check_documents(query, key, documents);
  if (query.device().type() == at::kPrivateUse1) {
    return tracing::attend(query, key, value, mask, documents, s.dropout, s.causal, {}, s.grouped);
  }
  auto seen = tracing::same_document(documents);
  if (s.causal) seen = seen.tril();
  auto bias = tracing::additive(seen, query);
  if (mask) bias = bias + tracing::additive(*mask, query);
  return at::scaled_dot_product_attention(query, key, value, bias, s.dropout, false, {}, s.grouped);
}

}  // namespace perigee
