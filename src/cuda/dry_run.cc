#include "cuda/dry_run.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <vector>

#include "cuda/torch_side.h"
#include "exec/memory/dry_run.h"
#include "exec/tensor.h"

namespace perigee::cuda {
namespace {

using Entries = std::vector<exec::RecordedAllocations::Entry>;

at::Tensor zeros(const graph::TensorType& type, const std::vector<int64_t>& strides,
                 at::Device place) {
  int64_t elements = type.numel() > 0 ? 1 : 0;
  for (size_t d = 0; d < strides.size() && elements > 0; ++d)
    elements += (type.shape[d] - 1) * strides[d];
  const auto options = at::TensorOptions().dtype(exec::scalar_type(type.dtype)).device(place);
  return at::zeros({elements}, options).as_strided(type.shape, strides);
}

class Recording {
 public:
  Recording(int device, Entries& entries) : device_(device) { record(device_, &entries); }
  ~Recording() { record(device_, nullptr); }
  Recording(const Recording&) = delete;

 private:
  int device_;
};

}  // namespace

std::optional<compile::OpTrace> dry_run(CudaDevice& device, const compile::OpInstance& instance) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto kernel = device.kernel(exec::dry_run_op(instance));
  std::vector<at::Tensor> operands, results(instance.outputs.size());
  compile::OpTrace trace;
  {
    const auto entered = device.enter();
    for (size_t i = 0; i < instance.operands.size(); ++i) {
      operands.push_back(zeros(instance.operands[i], instance.operand_strides[i], device.place()));
    }
    // The first call of an op may fill caches of libraries that later calls use.
    kernel(operands, results, {});
    results.assign(results.size(), {});
    Entries entries;
    const Recording recording(device.index(), entries);
    kernel(operands, results, {});
    trace = exec::trace_with_copies(instance, results, entries);
    std::vector<at::Tensor> freed(results.size());
    freed.swap(results);
    freed.clear();
    const bool keeps = std::any_of(entries.begin(), entries.end(),
                                   [](const auto& entry) { return entry.freed_at < 0; });
    if (keeps) {
      // `freed` is empty: the strides are those of the trace.
      compile::OpTrace alone{.output_strides = std::move(trace.output_strides), .complete = false};
      for (const auto& type : instance.outputs) {
        alone.output_allocation.push_back(type ? static_cast<int32_t>(alone.allocations.size())
                                               : -1);
        if (!type) continue;
        alone.allocations.push_back(type->bytes());
        alone.freed_before.emplace_back();
      }
      trace = std::move(alone);
    }
  }
  device.synchronize({});
  return trace;
}

}  // namespace perigee::cuda
