#include <ATen/ATen.h>
#include <ATen/native/TensorFactories.h>

#include "base/fail.h"
#include "capture/device/tensor.h"
#include "capture/record/session.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

int64_t wrap_dim(int64_t dim, int64_t rank) { return dim < 0 ? dim + rank : dim; }

std::vector<at::Tensor> index_select(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  if (!sizes.empty()) sizes[wrap_dim(v.integer(1), v.tensor(0).dim())] = v.tensor(2).numel();
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

// A mask among the indices gives as many rows as it has true elements.
std::vector<at::Tensor> index(const Values& v) {
  const auto indices = v[1].toOptionalTensorList();
  for (const std::optional<at::Tensor>& index : indices.vec()) {
    if (!index || !index->defined()) continue;
    if (index->scalar_type() == at::kBool || index->scalar_type() == at::kByte) {
      fail("capture",
           "aten::index.Tensor cannot be in a graph: a mask as index gives a shape that depends on "
           "values (use where or masked_fill){}",
           Session::current()->where());
    }
  }
  return {at::index(v.tensor(0), indices)};
}

std::vector<at::Tensor> take(const Values& v) {
  return {meta_tensor(v.tensor(1).sizes(), v.tensor(0).scalar_type())};
}

// (self, mask, ...): either may broadcast.
std::vector<at::Tensor> filled_by_mask(const Values& v) {
  const auto self = v.tensor(0);
  return {meta_tensor(at::infer_size(self.sizes(), v.tensor(1).sizes()), self.scalar_type())};
}

std::vector<at::Tensor> embedding(const Values& v) {
  auto sizes = v.tensor(1).sizes().vec();
  sizes.push_back(v.tensor(0).size(1));
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> embedding_backward(const Values& v) {
  const auto grad = v.tensor(0);
  return {meta_tensor({v.integer(2), grad.size(-1)}, grad.scalar_type())};
}

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
//  include_last_offset, padding_idx) -> output, offset2bag, bag_size, maximum_indices.
// Shapes of the CPU kernel, whose sum over float weights returns no offset2bag.
std::vector<at::Tensor> embedding_bag(const Values& v) {
  const auto weight = v.tensor(0), indices = v.tensor(1), offsets = v.tensor(2);
  const auto mode = v.integer(4);
  const bool last = v.boolean(7);
  const int64_t bags = offsets.size(0) - (last ? 1 : 0);
  const auto type = weight.scalar_type(), index = indices.scalar_type();
  const bool fast_type = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  const bool fast = mode == 0 && fast_type && v.integer(8) < 0;
  return {meta_tensor({bags, weight.size(1)}, type),
          meta_tensor({fast ? 0 : indices.size(0)}, index), meta_tensor({offsets.size(0)}, index),
          mode == 2 ? meta_tensor({bags, weight.size(1)}, index)
                    : meta_tensor({offsets.size(0)}, index)};
}

std::vector<at::Tensor> embedding_bag_backward(const Values& v) {
  const auto grad = v.tensor(0);
  const int64_t rows = v.schema().name() == "aten::_embedding_bag_backward" ? v.integer(6)
                                                                            : v.integer(5);
  return {meta_tensor({rows, grad.size(1)}, grad.scalar_type())};
}

std::vector<at::Tensor> embedding_bag_weights_backward(const Values& v) {
  return {meta_tensor(v.tensor(2).sizes(), v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> scalar_like(const Values& v) {
  return {meta_tensor({}, v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> real_like(const Values& v) {
  return {meta_tensor({}, c10::toRealValueType(v.tensor(0).scalar_type()))};
}

std::vector<at::Tensor> prod(const Values& v) {
  auto type = v.tensor(0).scalar_type();
  if (v[1].isInt()) {
    type = v[1].toScalarType();
  } else if (c10::isIntegralType(type, true)) {
    type = at::kLong;
  }
  return {meta_tensor({}, type)};
}

// The shape of `self` without the dims, or with size 1 there; no dims are all dims.
std::vector<int64_t> reduced_sizes(const at::Tensor& self, const std::vector<int64_t>& dims,
                                   bool keep) {
  std::vector<bool> reduced(self.dim(), dims.empty());
  for (auto dim : dims) reduced[wrap_dim(dim, self.dim())] = true;
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (!reduced[d]) sizes.push_back(self.size(d));
    if (reduced[d] && keep) sizes.push_back(1);
  }
  return sizes;
}

std::vector<at::Tensor> logsumexp(const Values& v) {
  const auto type = v.tensor(0).scalar_type();
  return {meta_tensor(reduced_sizes(v.tensor(0), v.ints(1), v.boolean(2)),
                      c10::isIntegralType(type, true) ? at::kFloat : type)};
}

// (self, dim?, keepdim, dtype?)
std::vector<at::Tensor> nansum(const Values& v) {
  const auto self = v.tensor(0);
  const auto dims = v[1].isNone() ? std::vector<int64_t>() : v.ints(1);
  auto type = self.scalar_type();
  if (v[3].isInt()) {
    type = v[3].toScalarType();
  } else if (c10::isIntegralType(type, true)) {
    type = at::kLong;
  }
  return {meta_tensor(reduced_sizes(self, dims, v.boolean(2)), type)};
}

// (self, dim?, correction, keepdim)
at::Tensor moment(const Values& v) {
  const auto self = v.tensor(0);
  const auto dims = v[1].isNone() ? std::vector<int64_t>() : v.ints(1);
  return meta_tensor(reduced_sizes(self, dims, v.boolean(3)),
                     c10::toRealValueType(self.scalar_type()));
}

std::vector<at::Tensor> one_moment(const Values& v) { return {moment(v)}; }
std::vector<at::Tensor> two_moments(const Values& v) {
  return {moment(v), meta_tensor(moment(v).sizes(), v.tensor(0).scalar_type())};
}

// Sizes: the argument's position in the schema.
template <size_t Sizes>
std::vector<at::Tensor> sized(const Values& v) {
  return {meta_tensor(v.ints(Sizes), v.tensor(0).scalar_type())};
}

std::vector<at::Tensor> cdist(const Values& v) {
  const auto a = v.tensor(0), b = v.tensor(1);
  auto sizes = at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  sizes.push_back(a.size(-2));
  sizes.push_back(b.size(-2));
  return {meta_tensor(sizes, a.scalar_type())};
}

std::vector<at::Tensor> pdist(const Values& v) {
  const auto rows = v.tensor(0).size(0);
  return {meta_tensor({rows * (rows - 1) / 2}, v.tensor(0).scalar_type())};
}

// (row, col, offset, dtype, ...): the indices of the elements on or below a diagonal, or above one.
template <bool Upper>
std::vector<at::Tensor> triangle(const Values& v) {
  const int64_t rows = v.integer(0), columns = v.integer(1), offset = v.integer(2);
  const int64_t count = Upper
                            ? rows * columns - at::native::get_tril_size(rows, columns, offset - 1)
                            : at::native::get_tril_size(rows, columns, offset);
  return {meta_tensor({2, count}, v[3].isNone() ? at::kLong : v[3].toScalarType())};
}

}  // namespace

ShapeTable index_shapes() {
  return {
      {"aten::index_select", index_select},
      {"aten::index.Tensor", index},
      {"aten::logsumexp", logsumexp},
      {"aten::embedding", embedding},
      {"aten::embedding_dense_backward", embedding_backward},
      {"aten::_embedding_bag", embedding_bag},
      {"aten::_embedding_bag_forward_only", embedding_bag},
      {"aten::_embedding_bag_backward", embedding_bag_backward},
      {"aten::_embedding_bag_dense_backward", embedding_bag_backward},
      {"aten::_embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward},
      {"aten::index_put", like<0>},
      {"aten::_unsafe_index_put", like<0>},
      {"aten::masked_fill.Scalar", filled_by_mask},
      {"aten::masked_fill.Tensor", filled_by_mask},
      {"aten::masked_scatter", filled_by_mask},
      {"aten::masked_scatter_backward", sized<2>},
      {"aten::flip", like<0>},
      {"aten::roll", like<0>},
      {"aten::take", take},
      {"aten::max", scalar_like},
      {"aten::min", scalar_like},
      {"aten::median", scalar_like},
      {"aten::prod", prod},
      {"aten::nansum", nansum},
      {"aten::dot", scalar_like},
      {"aten::dist", real_like},
      {"aten::trace", scalar_like},
      {"aten::var.correction", one_moment},
      {"aten::std.correction", one_moment},
      {"aten::var_mean.correction", two_moments},
      {"aten::std_mean.correction", two_moments},
      {"aten::tril_indices", triangle<false>},
      {"aten::triu_indices", triangle<true>},
      {"aten::select_backward", sized<1>},
      {"aten::slice_backward", sized<1>},
      {"aten::diagonal_backward", sized<1>},
      {"aten::unfold_backward", sized<1>},
      {"aten::_cdist_forward", cdist},
      {"aten::_cdist_backward", like<1>},
      {"aten::_pdist_forward", pdist},
      {"aten::_pdist_backward", like<1>},
  };
}

}  // namespace perigee::tracing
