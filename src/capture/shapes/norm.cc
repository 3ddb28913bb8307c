#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <fmt/ranges.h>

#include "base/fail.h"
#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

// Statistics are kept in float for half types.
at::ScalarType statistics_type(const at::Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

at::Tensor masked(bool wanted, at::IntArrayRef sizes, const at::Tensor& like) {
  return wanted ? meta_tensor(sizes, like.scalar_type()) : at::Tensor();
}

// (input, normalized_shape, weight, bias, eps) -> output, mean, rstd
std::vector<at::Tensor> layer_norm(const Values& v) {
  const auto input = v.tensor(0);
  auto sizes = input.sizes().vec();
  const auto shape = v.ints(1);
  const auto normalized = static_cast<int64_t>(shape.size());
  if (normalized < 1 || normalized > input.dim() ||
      input.sizes().slice(input.dim() - normalized) != at::IntArrayRef(shape)) {
    fail("capture", "layer_norm's normalized_shape is the input's last dims, but got [{}] for [{}]",
         fmt::join(shape, ", "), fmt::join(sizes, ", "));
  }
  for (const int i : {2, 3}) {
    if (!v.tensor(i).defined() || v.tensor(i).sizes() == at::IntArrayRef(shape)) continue;
    fail("capture", "layer_norm's {} must be [{}] as normalized_shape, but is [{}]",
         i == 2 ? "weight" : "bias", fmt::join(shape, ", "), fmt::join(v.tensor(i).sizes(), ", "));
  }
  for (int64_t d = input.dim() - normalized; d < input.dim(); ++d) sizes[d] = 1;
  const auto type = statistics_type(input);
  return {meta_tensor(input.sizes(), input.scalar_type()), meta_tensor(sizes, type),
          meta_tensor(sizes, type)};
}

// (grad, input, normalized_shape, mean, rstd, weight, bias, mask)
std::vector<at::Tensor> layer_norm_backward(const Values& v) {
  const auto mask = v[7].toBoolList();
  return {masked(mask[0], v.tensor(1).sizes(), v.tensor(1)),
          masked(mask[1] && v.tensor(5).defined(), v.ints(2), v.tensor(5)),
          masked(mask[2] && v.tensor(6).defined(), v.ints(2), v.tensor(6))};
}

// (input, weight, bias, N, C, HxW, group, eps) -> output, mean, rstd
std::vector<at::Tensor> group_norm(const Values& v) {
  const auto input = v.tensor(0);
  const std::vector<int64_t> sizes = {v.integer(3), v.integer(6)};
  return {meta_tensor(input.sizes(), input.scalar_type()), meta_tensor(sizes, input.scalar_type()),
          meta_tensor(sizes, input.scalar_type())};
}

// (grad, input, mean, rstd, weight, N, C, HxW, group, mask)
std::vector<at::Tensor> group_norm_backward(const Values& v) {
  const auto mask = v[9].toBoolList();
  const auto weight = v.tensor(4).defined() ? v.tensor(4) : v.tensor(1);
  const std::vector<int64_t> channels = {v.integer(6)};
  return {masked(mask[0], v.tensor(1).sizes(), v.tensor(1)), masked(mask[1], channels, weight),
          masked(mask[2], channels, weight)};
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps), or without statistics
// -> output, save_mean, save_invstd (empty where not training)
std::vector<at::Tensor> batch_norm(const Values& v) {
  const auto input = v.tensor(0);
  const bool training = v.boolean(v.size() == 8 ? 5 : 3);
  const std::vector<int64_t> sizes = {training ? input.size(1) : 0};
  const auto type = statistics_type(input);
  return {meta_tensor(input.sizes(), input.scalar_type()), meta_tensor(sizes, type),
          meta_tensor(sizes, type)};
}

// In inference there are no statistics of the batch.
std::vector<at::Tensor> batch_norm_inference(const Values& v) {
  const auto none = meta_tensor({0}, statistics_type(v.tensor(0)));
  return {at::empty_like(v.tensor(0)), none, none};
}

std::vector<at::Tensor> batch_norm_functional(const Values& v) {
  auto results = batch_norm(v);
  results.push_back(at::empty_like(v.tensor(3)));
  results.push_back(at::empty_like(v.tensor(4)));
  return results;
}

// (grad, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask)
std::vector<at::Tensor> batch_norm_backward(const Values& v) {
  const auto mask = v[9].toBoolList();
  const auto input = v.tensor(1);
  const auto weight = v.tensor(2).defined() ? v.tensor(2) : input;
  const std::vector<int64_t> channels = {input.size(1)};
  return {masked(mask[0], input.sizes(), input), masked(mask[1], channels, weight),
          masked(mask[2], channels, weight)};
}

// (v, g, dim) -> (weight, norms)
std::vector<at::Tensor> weight_norm(const Values& v) {
  const auto g = v.tensor(1);
  return {at::empty_like(v.tensor(0)), meta_tensor(g.sizes(), statistics_type(g))};
}

}  // namespace

ShapeTable norm_shapes() {
  return {
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::_native_batch_norm_legit_functional", batch_norm_functional},
      {"aten::_native_batch_norm_legit.no_stats", batch_norm},
      {"aten::_native_batch_norm_legit_no_training", batch_norm_inference},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::_weight_norm_interface", weight_norm},
      {"aten::_weight_norm_interface_backward", like<1, 2>},
  };
}

}  // namespace perigee::tracing
