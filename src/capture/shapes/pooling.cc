#include <ATen/ATen.h>

#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

int64_t at_dim(const std::vector<int64_t>& list, size_t d) {
  return list[list.size() == 1 ? 0 : d];
}

at::Tensor with_last(const at::Tensor& self, const std::vector<int64_t>& last, size_t dims) {
  auto sizes = self.sizes().vec();
  for (size_t i = 0; i < dims; ++i) sizes[sizes.size() - dims + i] = at_dim(last, i);
  return meta_tensor(sizes, self.scalar_type());
}

template <size_t Dims>
std::vector<at::Tensor> output_sized(const Values& v) {
  return {with_last(v.tensor(0), v.ints(1), Dims)};
}

// (self, indices, output_size, ...)
template <size_t Dims>
std::vector<at::Tensor> unpool(const Values& v) {
  return {with_last(v.tensor(0), v.ints(2), Dims)};
}

// (self, kernel_size, stride, padding, dilation, ceil_mode) -> output, indices
std::vector<at::Tensor> max_pool3d(const Values& v) {
  const auto self = v.tensor(0);
  const auto kernel = v.ints(1), padding = v.ints(3), dilation = v.ints(4);
  const auto stride = v.ints(2).empty() ? kernel : v.ints(2);
  const bool ceil = v.boolean(5);
  std::vector<int64_t> last;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t size = self.size(self.dim() - 3 + static_cast<int64_t>(i));
    const int64_t p = at_dim(padding, i), s = at_dim(stride, i);
    const int64_t span = size + 2 * p - at_dim(dilation, i) * (at_dim(kernel, i) - 1) - 1;
    int64_t windows = (span + (ceil ? s - 1 : 0)) / s + 1;
    // A window must start inside the input or its left padding.
    if (ceil && (windows - 1) * s >= size + p) --windows;
    last.push_back(windows);
  }
  const auto output = with_last(self, last, 3);
  return {output, meta_tensor(output.sizes(), at::kLong)};
}

// (self, padding): pairs, last dim first.
std::vector<at::Tensor> pad(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  const auto amounts = v.ints(1);
  for (size_t i = 0; i < amounts.size() / 2; ++i) {
    sizes[sizes.size() - 1 - i] += amounts[2 * i] + amounts[2 * i + 1];
  }
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

// (input [n, c, *in], grid [n, *out, dims])
std::vector<at::Tensor> grid_sample(const Values& v) {
  const auto input = v.tensor(0), grid = v.tensor(1);
  std::vector<int64_t> sizes = {input.size(0), input.size(1)};
  for (int64_t d = 1; d + 1 < grid.dim(); ++d) sizes.push_back(grid.size(d));
  return {meta_tensor(sizes, input.scalar_type())};
}

// (grad, input, grid, ..., mask)
std::vector<at::Tensor> grid_sample_backward(const Values& v) {
  const auto mask = v[6].toBoolList();
  return {mask[0] ? at::empty_like(v.tensor(1)) : at::Tensor(), at::empty_like(v.tensor(2))};
}

}  // namespace

ShapeTable pooling_shapes() {
  return {
      {"aten::_adaptive_avg_pool2d", output_sized<2>},
      {"aten::_adaptive_avg_pool3d", output_sized<3>},
      {"aten::_adaptive_avg_pool2d_backward", like<1>},
      {"aten::_adaptive_avg_pool3d_backward", like<1>},
      {"aten::max_pool3d_with_indices", max_pool3d},
      {"aten::max_pool3d_with_indices_backward", like<1>},
      {"aten::fractional_max_pool3d_backward", like<1>},
      {"aten::max_unpool2d", unpool<2>},
      {"aten::max_unpool3d", unpool<3>},
      {"aten::reflection_pad2d", pad},
      {"aten::reflection_pad2d_backward", like<1>},
      {"aten::replication_pad2d_backward", like<1>},
      {"aten::replication_pad3d_backward", like<1>},
      {"aten::grid_sampler_2d", grid_sample},
      {"aten::grid_sampler_3d", grid_sample},
      {"aten::grid_sampler_2d_backward", grid_sample_backward},
      {"aten::grid_sampler_3d_backward", grid_sample_backward},
  };
}

}  // namespace perigee::tracing
