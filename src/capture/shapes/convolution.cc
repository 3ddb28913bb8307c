#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/fail.h"
#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

// A list of one number stands for all dims.
int64_t at_dim(const std::vector<int64_t>& list, size_t d) {
  return list[list.size() == 1 ? 0 : d];
}

void require_positive(std::string_view op, std::string_view name, at::IntArrayRef values) {
  if (std::ranges::all_of(values, [](int64_t value) { return value > 0; })) return;
  fail("capture", "{} of {} must be at least 1, but got [{}]", name, op, fmt::join(values, ", "));
}

// (input [n, c, *], weight, bias, stride, padding, dilation, transposed, output_padding, groups)
std::vector<at::Tensor> convolution(const Values& v) {
  const auto input = v.tensor(0), weight = v.tensor(1);
  const auto stride = v.ints(3), padding = v.ints(4), dilation = v.ints(5), extra = v.ints(7);
  const bool transposed = v.boolean(6);
  const int64_t groups = v.integer(8);
  require_positive("a convolution", "stride", stride);
  require_positive("a convolution", "dilation", dilation);
  require_positive("a convolution", "groups", {groups});
  const int64_t channels = transposed ? weight.size(0) : weight.size(1) * groups;
  if (input.dim() != weight.dim() || input.size(1) != channels) {
    fail("capture", "a convolution with weight [{}] in {} groups takes [n, {}, ...], but got [{}]",
         fmt::join(weight.sizes(), ", "), groups, channels, fmt::join(input.sizes(), ", "));
  }
  std::vector<int64_t> sizes = {input.size(0),
                                transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t d = 2; d < input.dim(); ++d) {
    const size_t i = d - 2;
    const int64_t kernel = at_dim(dilation, i) * (weight.size(d) - 1) + 1;
    const int64_t s = at_dim(stride, i), p = at_dim(padding, i);
    const int64_t size = transposed ? (input.size(d) - 1) * s - 2 * p + kernel + at_dim(extra, i)
                                    : (input.size(d) + 2 * p - kernel) / s + 1;
    if (input.size(d) + 2 * p < (transposed ? 1 : kernel) || size < 1) {
      fail("capture",
           "a convolution's result has sizes of at least 1, but input [{}] with weight "
           "[{}] gives {} in dim {}",
           fmt::join(input.sizes(), ", "), fmt::join(weight.sizes(), ", "), size, d);
    }
    sizes.push_back(size);
  }
  return {meta_tensor(sizes, input.scalar_type())};
}

// (grad, input, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
//  mask)
std::vector<at::Tensor> convolution_backward(const Values& v) {
  const auto mask = v[10].toBoolList();
  const auto grad = v.tensor(0), input = v.tensor(1), weight = v.tensor(2);
  return {mask[0] ? meta_tensor(input.sizes(), input.scalar_type()) : at::Tensor(),
          mask[1] ? meta_tensor(weight.sizes(), weight.scalar_type()) : at::Tensor(),
          mask[2] ? meta_tensor({grad.size(1)}, grad.scalar_type()) : at::Tensor()};
}

// (self [n?, c, h, w], kernel_size, dilation, padding, stride) -> [n?, c * kernel, blocks]
std::vector<at::Tensor> im2col(const Values& v) {
  const auto self = v.tensor(0);
  const auto kernel = v.ints(1), dilation = v.ints(2), padding = v.ints(3), stride = v.ints(4);
  require_positive("im2col", "kernel_size", kernel);
  require_positive("im2col", "dilation", dilation);
  require_positive("im2col", "stride", stride);
  int64_t blocks = 1, elements = 1;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t size = self.size(self.dim() - 2 + static_cast<int64_t>(i));
    const int64_t reach = at_dim(dilation, i) * (at_dim(kernel, i) - 1) + 1;
    blocks *= (size + 2 * at_dim(padding, i) - reach) / at_dim(stride, i) + 1;
    elements *= at_dim(kernel, i);
  }
  auto sizes = self.sizes().slice(0, self.dim() - 2).vec();
  sizes.back() *= elements;
  sizes.push_back(blocks);
  return {meta_tensor(sizes, self.scalar_type())};
}

// (self [n?, c * kernel, blocks], output_size, kernel_size, ...) -> [n?, c, h, w]
std::vector<at::Tensor> col2im(const Values& v) {
  const auto self = v.tensor(0);
  const auto output = v.ints(1), kernel = v.ints(2);
  require_positive("col2im", "kernel_size", kernel);
  auto sizes = self.sizes().slice(0, self.dim() - 1).vec();
  sizes.back() /= at_dim(kernel, 0) * at_dim(kernel, 1);
  sizes.push_back(at_dim(output, 0));
  sizes.push_back(at_dim(output, 1));
  return {meta_tensor(sizes, self.scalar_type())};
}

std::vector<at::Tensor> pixel_shuffle(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  const auto n = sizes.size();
  const int64_t factor = v.integer(1);
  require_positive("pixel_shuffle", "the factor", {factor});
  sizes[n - 3] /= factor * factor;
  sizes[n - 2] *= factor;
  sizes[n - 1] *= factor;
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> pixel_unshuffle(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  const auto n = sizes.size();
  const int64_t factor = v.integer(1);
  require_positive("pixel_unshuffle", "the factor", {factor});
  sizes[n - 3] *= factor * factor;
  sizes[n - 2] /= factor;
  sizes[n - 1] /= factor;
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

}  // namespace

ShapeTable convolution_shapes() {
  return {
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::im2col", im2col},
      {"aten::col2im", col2im},
      {"aten::pixel_shuffle", pixel_shuffle},
      {"aten::pixel_unshuffle", pixel_unshuffle},
      {"aten::channel_shuffle", like<0>},
  };
}

}  // namespace perigee::tracing
