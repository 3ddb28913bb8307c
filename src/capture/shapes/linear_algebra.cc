// Linear algebra over the last two dims; dims before them are a batch and broadcast.
#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>

#include "capture/device/tensor.h"
#include "capture/shapes/tables.h"

namespace perigee::tracing {
namespace {

// Returns the sizes of the batch of both, followed by rows and columns.
at::Tensor batched(const at::Tensor& a, const at::Tensor& b, int64_t rows, int64_t columns) {
  auto sizes = at::infer_size(a.sizes().slice(0, a.dim() - 2), b.sizes().slice(0, b.dim() - 2));
  sizes.push_back(rows);
  sizes.push_back(columns);
  return meta_tensor(sizes, a.scalar_type());
}

// The solution X of A X = B, or X A = B, shaped as B. B: the operand's position; A is the other one.
template <size_t B>
std::vector<at::Tensor> solution(const Values& v) {
  const auto a = v.tensor(1 - B), b = v.tensor(B);
  return {batched(a, b, b.size(-2), b.size(-1))};
}

// (self, ..) -> its pseudo-inverse
std::vector<at::Tensor> inverse(const Values& v) {
  auto sizes = v.tensor(0).sizes().vec();
  std::swap(sizes[sizes.size() - 1], sizes[sizes.size() - 2]);
  return {meta_tensor(sizes, v.tensor(0).scalar_type())};
}

// (self, batch1 [b,n,m], batch2 [b,m,p]) -> [n,p]
std::vector<at::Tensor> addbmm(const Values& v) {
  return {meta_tensor({v.tensor(1).size(1), v.tensor(2).size(2)}, v.tensor(1).scalar_type())};
}

}  // namespace

ShapeTable linear_algebra_shapes() {
  return {
      {"aten::linalg_solve_triangular", solution<1>},  {"aten::cholesky_solve", solution<0>},
      {"aten::_cholesky_solve_helper", solution<0>},   {"aten::linalg_matrix_exp", like<0>},
      {"aten::linalg_pinv.atol_rtol_tensor", inverse}, {"aten::addbmm", addbmm},
  };
}

}  // namespace perigee::tracing
