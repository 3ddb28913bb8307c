#include "cuda/dry_run.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include "exec/tensor.h"

namespace perigee::cuda {
namespace {

at::Tensor zeros(const graph::TensorType& type, const std::vector<int64_t>& strides,
                 at::Device place) {
  int64_t elements = type.numel() > 0 ? 1 : 0;
  for (size_t d = 0; d < strides.size() && elements > 0; ++d)
    elements += (type.shape[d] - 1) * strides[d];
  const auto options = at::TensorOptions().dtype(exec::scalar_type(type.dtype)).device(place);
  return at::zeros({elements}, options).as_strided(type.shape, strides);
}

}  // namespace

std::optional<compile::OpTrace> dry_run(CudaDevice& device, const compile::OpInstance& instance) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto kernel = device.kernel(exec::op_of(instance));
  std::vector<at::Tensor> operands, results(instance.outputs.size());
  {
    const auto entered = device.enter();
    for (size_t i = 0; i < instance.operands.size(); ++i) {
      operands.push_back(zeros(instance.operands[i], instance.operand_strides[i], device.place()));
    }
    kernel(operands, results, {});
  }
  device.synchronize({});
  compile::OpTrace trace{.complete = false};
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& result = results[i];
    trace.output_allocation.push_back(-1);
    trace.output_strides.emplace_back();
    if (!result.defined() || !instance.outputs[i]) continue;
    // Results are copied to their planned addresses, also a returned operand, so strides with gaps
    // need not be kept.
    trace.output_strides.back() = result.is_non_overlapping_and_dense()
                                      ? result.strides().vec()
                                      : exec::contiguous_strides(instance.outputs[i]->shape);
    trace.output_allocation.back() = static_cast<int32_t>(trace.allocations.size());
    trace.allocations.push_back(instance.outputs[i]->bytes());
    trace.freed_before.emplace_back();
  }
  return trace;
}

}  // namespace perigee::cuda
