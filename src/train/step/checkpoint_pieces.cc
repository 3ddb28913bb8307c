// The pieces of a checkpoint that a rank writes.
#include <ATen/ATen.h>

#include <set>

#include "base/fail.h"
#include "checkpoint/files.h"
#include "checkpoint/holdings.h"
#include "exec/kernels/finite_copy.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()),
          static_cast<size_t>(tensor.nbytes())};
}

}  // namespace

void RankTrainer::average_copies(int64_t step) {
  const auto& program = executor_->program();
  averages_.assign(program.bindings.size(), {});
  for (size_t b = 0; b < program.bindings.size(); ++b) {
    const auto& binding = program.bindings[b];
    if (!checkpoint::is_kept(blueprint_.plan, binding) ||
        !checkpoint::are_apart(blueprint_.training, blueprint_.plan, binding.name, step))
      continue;
    averages_[b] = averaged(executor_->tensor(binding)).cpu();
  }
}

int64_t RankTrainer::bytes_to_write(int64_t step) const {
  const auto all = checkpoint::all_holdings(executor_->program(), blueprint_.training,
                                            blueprint_.plan, spec_, step);
  const auto bytes = checkpoint::bytes_by_owner(all, communicator_.world());
  return bytes[static_cast<size_t>(communicator_.rank())];
}

std::shared_ptr<std::byte> RankTrainer::host_memory(int64_t bytes) const {
  return connection_.device->allocate_host(bytes);
}

Snapshot RankTrainer::pieces_to_write(int64_t step, std::span<std::byte> copy) {
  const bool copies = !copy.empty();
  const auto& program = executor_->program();
  const auto all = checkpoint::all_holdings(program, blueprint_.training, blueprint_.plan, spec_,
                                            step);
  const auto writers = checkpoint::owners(all);
  std::set<std::string> mine;
  for (size_t i = 0; i < all.size(); ++i) {
    if (writers[i] == communicator_.rank()) mine.insert(checkpoint::key_of(all[i].part));
  }
  Snapshot snapshot;
  on_host_.clear();
  const auto add = [&](checkpoint::TensorPart part, at::Tensor tensor, bool weight) {
    if (!mine.contains(checkpoint::key_of(part))) return;
    const auto size = static_cast<size_t>(tensor.nbytes());
    std::span<const std::byte> bytes;
    bool finite = true;
    if (copies) {
      if (size > copy.size()) {
        fail_run("checkpoint", "the copy of {} must have room for {} bytes, but has {}", part.name,
                 size, copy.size());
      }
      bytes = copy.first(size);
      if (tensor.device().is_cpu()) {
        finite = exec::kernels::copy_finite(part.dtype, bytes_of(tensor), copy.data());
      } else {
        at::from_blob(copy.data(), tensor.sizes(), tensor.options().device(at::kCPU)).copy_(tensor);
        finite = exec::kernels::are_finite(part.dtype, bytes);
      }
      copy = copy.subspan(size);
    } else {
      if (!tensor.device().is_cpu()) tensor = on_host_.emplace_back(tensor.cpu());
      bytes = bytes_of(tensor);
      finite = exec::kernels::are_finite(part.dtype, bytes);
    }
    if (!finite) snapshot.not_finite.push_back(snapshot.pieces.size());
    snapshot.pieces.push_back({std::move(part), bytes, weight});
  };
  for (size_t b = 0; b < program.bindings.size(); ++b) {
    const auto& binding = program.bindings[b];
    if (!checkpoint::is_kept(blueprint_.plan, binding)) continue;
    const auto part = checkpoint::part_of_binding(program, binding);
    const auto tensor = executor_->tensor(binding);
    const bool weight = binding.kind != Kind::state;
    if (b < averages_.size() && averages_[b].defined()) {
      add(part, averages_[b], weight);
      add(checkpoint::part_of_copies(part, program.model_copies, program.model_copy), tensor,
          false);
    } else {
      add(part, tensor, weight);
    }
  }
  return snapshot;
}

}  // namespace perigee::train
