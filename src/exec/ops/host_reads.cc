#include "exec/ops/host_reads.h"

#include <set>
#include <string_view>

#include "exec/ops/expert_ops.h"

namespace perigee::exec {

bool reads_on_host(const Op& op) {
  // Ops of LibTorch whose CUDA kernels may copy values to the host: sizes and limits that follow
  // from values, and the status of solvers.
  static const std::set<std::string_view> of_torch = {
      "aten::_ctc_loss",
      "aten::_ctc_loss.Tensor",
      "aten::_ctc_loss_backward",
      "aten::_linalg_det",
      "aten::_linalg_eigh",
      "aten::_linalg_eigvals",
      "aten::_linalg_slogdet",
      "aten::_linalg_solve_ex",
      "aten::_linalg_svd",
      "aten::bincount",
      "aten::cholesky",
      "aten::cholesky_inverse",
      "aten::cholesky_solve",
      "aten::equal",
      "aten::geqrf",
      "aten::histc",
      "aten::item",
      "aten::linalg_cholesky_ex",
      "aten::linalg_eig",
      "aten::linalg_eigh",
      "aten::linalg_inv_ex",
      "aten::linalg_ldl_factor_ex",
      "aten::linalg_lstsq",
      "aten::linalg_lu_factor_ex",
      "aten::linalg_qr",
      "aten::linalg_solve_triangular",
      "aten::lu_unpack",
      "aten::masked_select",
      "aten::multinomial",
      "aten::nonzero",
      "aten::repeat_interleave.Tensor",
      "aten::triangular_solve",
      "aten::unique_consecutive",
      "aten::unique_dim",
  };
  return of_torch.contains(op.name) || expert_op_reads_on_host(op);
}

}  // namespace perigee::exec
