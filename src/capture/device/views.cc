#include "capture/device/views.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace perigee::tracing {
namespace {

// Returns the dims by descending stride, without dims of size 1.
std::vector<int64_t> by_stride(const Geometry& geometry) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < geometry.sizes.size(); ++d) {
    if (geometry.sizes[d] != 1) dims.push_back(static_cast<int64_t>(d));
  }
  std::stable_sort(dims.begin(), dims.end(),
                   [&](auto a, auto b) { return geometry.strides[a] > geometry.strides[b]; });
  return dims;
}

// Returns base as one dim in memory order, or undefined where it has gaps or repeats elements.
at::Tensor flat_in_memory_order(const at::Tensor& base, const Geometry& from) {
  auto dims = by_stride(from);
  int64_t expected = 1;
  for (size_t i = dims.size(); i-- > 0;) {
    if (from.strides[dims[i]] != expected) return {};
    expected *= from.sizes[dims[i]];
  }
  for (size_t d = 0; d < from.sizes.size(); ++d) {
    if (from.sizes[d] == 1) dims.push_back(static_cast<int64_t>(d));
  }
  const bool ordered = std::is_sorted(dims.begin(), dims.end()) || dims.empty();
  return (ordered ? base : base.permute(dims)).reshape({-1});
}

}  // namespace

Geometry Geometry::of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset()};
}

int64_t Geometry::span() const {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

// Splits the flat memory from the widest stride inwards: [n] -> [n / s1, s1] -> slice -> ... Each
// stride must divide the extent of the one around it.
at::Tensor strided_view(const at::Tensor& base, const Geometry& from, const Geometry& to) {
  if (from == to) return base.alias();
  if (from.span() == 0 || to.span() == 0) return {};
  auto view = flat_in_memory_order(base, from);
  if (!view.defined()) return {};
  int64_t offset = to.offset - from.offset;
  if (offset < 0 || offset + to.span() > view.numel()) return {};

  std::vector<int64_t> real, order = by_stride(to);
  std::copy_if(order.begin(), order.end(), std::back_inserter(real),
               [&](auto d) { return to.strides[d] != 0; });
  int64_t extent = view.numel();
  for (size_t i = 0; i < real.size(); ++i) {
    const int64_t size = to.sizes[real[i]], stride = to.strides[real[i]];
    if (extent % stride != 0) return {};
    const auto dim = static_cast<int64_t>(i), first = offset / stride;
    if (first + size > extent / stride) return {};
    view = view.unflatten(dim, {extent / stride, stride}).slice(dim, first, first + size);
    offset %= stride;
    extent = stride;
  }
  view = view.select(static_cast<int64_t>(real.size()), offset);

  // The view's dims are `real`; put them in order, then add dims of size 1 and of stride 0.
  std::vector<int64_t> position(real.size());
  std::iota(position.begin(), position.end(), 0);
  std::sort(position.begin(), position.end(), [&](auto a, auto b) { return real[a] < real[b]; });
  if (!std::is_sorted(position.begin(), position.end())) view = view.permute(position);
  for (size_t d = 0; d < to.sizes.size(); ++d) {
    if (std::find(real.begin(), real.end(), static_cast<int64_t>(d)) == real.end()) {
      view = view.unsqueeze(static_cast<int64_t>(d));
    }
  }
  return view.expand(to.sizes);
}

}  // namespace perigee::tracing
