#include <ATen/ATen.h>

#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

at::ScalarType computed_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<at::Tensor> attention(const Values& v) {
  const auto query = v.tensor(0), value = v.tensor(2);
  const auto q = query.sizes();
  return {meta_tensor({q[0], q[1], q[2], value.size(3)}, query.scalar_type()),
          meta_tensor({q[0], q[1], q[2]}, computed_type(query))};
}

// (grad, query, key, value, bias, output, logsumexp, causal, scale, p, random_key, bias_grad)
std::vector<at::Tensor> attention_backward(const Values& v) {
  auto results = like<1, 2, 3>(v);
  results.push_back(v.boolean(11) ? at::empty_like(v.tensor(4)) : at::Tensor());
  return results;
}

std::vector<at::Tensor> rms_norm(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  sizes.back() = 1;
  return {at::empty_like(v.tensor(0)), meta_tensor(sizes, computed_type(v.tensor(0)))};
}

// (self, other, weight, eps)
std::vector<at::Tensor> add_rms_norm(const Values& v) {
  auto results = rms_norm(v);
  results.insert(results.begin(), at::empty_like(v.tensor(0)));
  return results;
}

// (self, other, normalized_shape, weight, bias, eps)
std::vector<at::Tensor> add_layer_norm(const Values& v) {
  const auto self = v.tensor(0);
  auto sizes = self.sizes().vec();
  for (auto d = sizes.size() - v.ints(2).size(); d < sizes.size(); ++d) sizes[d] = 1;
  return {at::empty_like(self), at::empty_like(self), meta_tensor(sizes, computed_type(self)),
          meta_tensor(sizes, computed_type(self))};
}

std::vector<at::Tensor> gelu_backward_sum(const Values& v) {
  const auto self = v.tensor(1);
  return {at::empty_like(self), meta_tensor({self.size(-1)}, self.scalar_type())};
}

std::vector<at::Tensor> cross_entropy(const Values& v) {
  const auto logits = v.tensor(0);
  return {meta_tensor({logits.size(0)}, logits.scalar_type()),
          meta_tensor({logits.size(0)}, computed_type(logits))};
}

std::vector<at::Tensor> nll(const Values& v) {
  return {meta_tensor(v.tensor(1).sizes(), v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> label_weight(const Values& v) {
  return {meta_tensor({}, v[3].toScalarType())};
}

std::vector<at::Tensor> expert_slots(const Values& v) {
  const auto expert = v.tensor(0);
  return {at::empty_like(expert), meta_tensor({expert.size(0), v[1].toInt()}, at::kLong)};
}

std::vector<at::Tensor> dispatch(const Values& v) {
  const auto source = v.tensor(0);
  return {meta_tensor({v[2].toInt(), source.size(0), v[3].toInt(), source.size(3)},
                      source.scalar_type())};
}

std::vector<at::Tensor> combine(const Values& v) {
  auto sizes = v.tensor(1).sizes().vec();
  sizes.push_back(v.tensor(0).size(3));
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> grouped_mm(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  sizes.back() = v.tensor(1).size(2);
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> grouped_outer(const Values& v) {
  const auto self = v.tensor(0);
  return {meta_tensor({self.size(0), self.size(3), v.tensor(1).size(3)}, self.scalar_type())};
}

}  // namespace

ShapeTable perigee_shapes() {
  return {
      {"perigee::dropout", like<0>},
      {"perigee::attention", attention},
      {"perigee::attention_backward", attention_backward},
      {"perigee::rotary", like<0>},
      {"perigee::rotary_backward", like<0>},
      {"perigee::swiglu", like<0>},
      {"perigee::swiglu_backward", like<1, 2>},
      {"perigee::rms_norm", rms_norm},
      {"perigee::rms_norm_backward", like<1, 2>},
      {"perigee::add_rms_norm", add_rms_norm},
      {"perigee::rms_norm_backward_add", like<1, 2>},
      {"perigee::add_layer_norm", add_layer_norm},
      {"perigee::layer_norm_backward_add", like<1, 5, 6>},
      {"perigee::gelu_backward_sum", gelu_backward_sum},
      {"perigee::cross_entropy", cross_entropy},
      {"perigee::cross_entropy_backward", like<1>},
      {"perigee::nll", nll},
      {"perigee::nll_backward", like<1>},
      {"perigee::label_weight", label_weight},
      {"perigee::step_average", like<0>},
      {"perigee::step_share", like<0>},
      {"perigee::expert_slots", expert_slots},
      {"perigee::dispatch", dispatch},
      {"perigee::combine", combine},
      {"perigee::grouped_mm", grouped_mm},
      {"perigee::grouped_outer", grouped_outer},
  };
}

}  // namespace perigee::tracing
