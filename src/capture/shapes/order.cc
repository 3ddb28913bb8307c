// Ops that order the elements of a dim or search in it.
#include <ATen/ATen.h>

#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

// (self, ..) -> values, indices shaped like self
std::vector<at::Tensor> running(const Values& v) {
  const auto self = v.tensor(0);
  return {meta_tensor(self.sizes(), self.scalar_type()), meta_tensor(self.sizes(), at::kLong)};
}

// Returns the sizes without the dim, or with size 1 there.
std::vector<int64_t> without(const at::Tensor& self, int64_t dim, bool keep) {
  auto sizes = self.sizes().vec();
  if (sizes.empty()) return sizes;
  const auto at = sizes.begin() + (dim < 0 ? dim + self.dim() : dim);
  if (keep) {
    *at = 1;
  } else {
    sizes.erase(at);
  }
  return sizes;
}

// An element along a dim with its index. Dim: the argument's position in the schema.
template <size_t Dim>
std::vector<at::Tensor> chosen(const Values& v) {
  const auto sizes = without(v.tensor(0), v.integer(Dim), v.boolean(Dim + 1));
  return {meta_tensor(sizes, v.tensor(0).scalar_type()), meta_tensor(sizes, at::kLong)};
}

// (self, boundaries, out_int32, right)
std::vector<at::Tensor> bucketize(const Values& v) {
  return {meta_tensor(v.tensor(0).sizes(), v.boolean(2) ? at::kInt : at::kLong)};
}

// (sorted_sequence, self, out_int32, ..)
std::vector<at::Tensor> searchsorted(const Values& v) {
  return {meta_tensor(v.tensor(1).sizes(), v.boolean(2) ? at::kInt : at::kLong)};
}

// (self, k, dims): a quarter turn, k times.
std::vector<at::Tensor> rot90(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  const auto rank = static_cast<int64_t>(sizes.size());
  const auto dims = v.ints(2);
  if (v.integer(1) % 2 != 0) {
    const auto at = [&](size_t i) { return dims[i] < 0 ? dims[i] + rank : dims[i]; };
    std::swap(sizes[at(0)], sizes[at(1)]);
  }
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

// (self, dims)
std::vector<at::Tensor> count_nonzero(const Values& v) {
  const auto self = v.tensor(0);
  std::vector<bool> counted(self.dim(), v[1].isNone() || v.ints(1).empty());
  if (!v[1].isNone()) {
    for (const auto dim : v.ints(1)) counted[dim < 0 ? dim + self.dim() : dim] = true;
  }
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!counted[d]) sizes.push_back(self.size(d));
  }
  return {meta_tensor(sizes, at::kLong)};
}

// (self, dim)
std::vector<at::Tensor> count_nonzero_along(const Values& v) {
  const auto self = v.tensor(0);
  if (v[1].isNone()) return {meta_tensor({}, at::kLong)};
  return {meta_tensor(without(self, v.integer(1), false), at::kLong)};
}

}  // namespace

ShapeTable order_shapes() {
  return {
      {"aten::cummax", running},
      {"aten::cummin", running},
      {"aten::logcumsumexp", like<0>},
      {"aten::kthvalue", chosen<2>},
      {"aten::median.dim", chosen<1>},
      {"aten::nanmedian.dim", chosen<1>},
      {"aten::mode", chosen<1>},
      {"aten::bucketize.Tensor", bucketize},
      {"aten::searchsorted.Tensor", searchsorted},
      {"aten::count_nonzero.dim_IntList", count_nonzero},
      {"aten::count_nonzero", count_nonzero_along},
      {"aten::rot90", rot90},
  };
}

}  // namespace perigee::tracing
