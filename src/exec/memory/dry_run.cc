#include "exec/memory/dry_run.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/fail.h"
#include "exec/kernels/kernels.h"
#include "exec/memory/allocator.h"
#include "exec/op_threads.h"
#include "exec/tensor.h"

namespace perigee::exec {
namespace {

// Returns a tensor of zeros whose pages are allocated when they are written: reading
// allocates nothing.
at::Tensor empty_pages(const graph::TensorType& type, const std::vector<int64_t>& strides) {
  int64_t elements = type.numel() > 0 ? 1 : 0;
  for (size_t d = 0; d < strides.size() && elements > 0; ++d)
    elements += (type.shape[d] - 1) * strides[d];
  const auto bytes = static_cast<size_t>(std::max<int64_t>(elements, 1)) *
                     graph::size_of(type.dtype);
  void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pages == MAP_FAILED) {
    fail_run("profile", "a dry run needs {} bytes of address space, but got: {}", bytes,
             std::strerror(errno));
  }
  return at::from_blob(
      pages, type.shape, strides, [bytes](void* p) { munmap(p, bytes); },
      at::TensorOptions().dtype(scalar_type(type.dtype)));
}

// Adds the memory of the op's workers as its first allocation, which lives as long as the op:
// workers hold it while the op's own thread allocates and frees.
void add_workers(const Workers& workers, compile::OpTrace& trace) {
  trace.worker_bytes = workers.peak();
  if (trace.worker_bytes == 0) return;
  trace.allocations.insert(trace.allocations.begin(), workers.count() * trace.worker_bytes);
  for (auto& freed : trace.freed_before) {
    for (auto& allocation : freed) ++allocation;
  }
  trace.freed_before.insert(trace.freed_before.begin(), std::vector<int32_t>());
  for (auto& allocation : trace.output_allocation) {
    if (allocation >= 0) ++allocation;
  }
  // Memory that workers still hold after the op cannot be planned for the op alone.
  trace.complete = workers.empty();
}

// Appends the recorded allocations to the trace, with those that were freed before each.
void add_allocations(compile::OpTrace& trace,
                     const std::vector<RecordedAllocations::Entry>& entries) {
  for (size_t k = 0; k < entries.size(); ++k) {
    trace.allocations.push_back(entries[k].bytes);
    auto& freed = trace.freed_before.emplace_back();
    for (size_t j = 0; j < k; ++j) {
      if (entries[j].freed_at >= 0 && entries[j].freed_at <= static_cast<int64_t>(k)) {
        freed.push_back(static_cast<int32_t>(j));
      }
    }
  }
}

// Returns the index of the recorded allocation that is in use at the address, or -1.
int32_t allocation_at(const void* address, const std::vector<RecordedAllocations::Entry>& entries) {
  for (size_t k = entries.size(); k-- > 0;) {
    if (entries[k].freed_at < 0 && entries[k].address == address) return static_cast<int32_t>(k);
  }
  return -1;
}

// Returns whether no two elements of the tensor share memory, by its strides.
bool elements_lie_apart(const at::Tensor& t) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (int64_t d = 0; d < t.dim(); ++d) {
    if (t.size(d) != 1) dims.emplace_back(t.stride(d), t.size(d));
  }
  std::sort(dims.begin(), dims.end());
  int64_t extent = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < extent) return false;
    extent = stride * (size - 1) + extent;
  }
  return true;
}

}  // namespace

Op dry_run_op(const compile::OpInstance& instance) {
  Op op = op_of(instance);
  if (op.name != "perigee::expert_slots") return op;
  for (auto& [name, value] : op.args) {
    if (name == "places") value = std::numeric_limits<int64_t>::max();
  }
  return op;
}

std::optional<compile::OpTrace> record_trace(const compile::OpInstance& instance) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  // LibTorch sets a thread's number of OpenMP threads when the thread first asks for it. oneDNN
  // reads OpenMP's number and does not ask LibTorch: on a new thread (base/parallel.h) it would
  // reserve scratch memory for as many threads as there are cores.
  op_threads();
  std::vector<at::Tensor> operands;
  for (size_t i = 0; i < instance.operands.size(); ++i) {
    operands.push_back(empty_pages(instance.operands[i], instance.operand_strides[i]));
  }
  const auto kernel = cpu_kernel(dry_run_op(instance));
  std::vector<at::Tensor> results(instance.outputs.size());
  // The first call of an op may fill caches (oneDNN's) that later calls use.
  kernel(operands, results, {});
  results.assign(results.size(), {});
  compile::OpTrace trace;
  RecordedAllocations recorded;
  kernel(operands, results, {});

  const auto& entries = recorded.entries();
  add_allocations(trace, entries);
  for (const auto& result : results) {
    int32_t allocation = -1;
    std::vector<int64_t> strides;
    if (result.defined()) {
      strides = result.strides().vec();
      allocation = allocation_at(result.storage().data(), entries);
      if (allocation >= 0 && result.storage_offset() != 0) return std::nullopt;
    }
    trace.output_allocation.push_back(allocation);
    trace.output_strides.push_back(std::move(strides));
  }
  add_workers(recorded.workers(), trace);
  return trace;
}

compile::OpTrace trace_with_copies(const compile::OpInstance& instance,
                                   std::span<const at::Tensor> results,
                                   const std::vector<RecordedAllocations::Entry>& entries) {
  compile::OpTrace trace;
  add_allocations(trace, entries);
  std::vector<bool> taken(entries.size());
  for (size_t i = 0; i < results.size(); ++i) {
    const auto& result = results[i];
    trace.output_allocation.push_back(-1);
    trace.output_strides.emplace_back();
    if (!result.defined() || !instance.outputs[i]) continue;
    const auto& type = *instance.outputs[i];
    const bool dense = result.is_non_overlapping_and_dense();
    trace.output_strides.back() = dense ? result.strides().vec() : contiguous_strides(type.shape);
    const auto allocation = allocation_at(result.storage().data(), entries);
    // Rows may have gaps between or after them that are the result's own and take little memory.
    const auto most = type.bytes() + type.bytes() / 8;
    if (allocation >= 0 && !taken[allocation] && result.storage_offset() == 0 &&
        entries[allocation].bytes <= most && (dense || elements_lie_apart(result))) {
      trace.output_strides.back() = result.strides().vec();
      trace.output_allocation.back() = allocation;
      taken[allocation] = true;
    } else {
      trace.output_allocation.back() = static_cast<int32_t>(trace.allocations.size());
      trace.allocations.push_back(type.bytes());
      trace.freed_before.emplace_back();
    }
  }
  return trace;
}

}  // namespace perigee::exec
