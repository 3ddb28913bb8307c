#include "exec/memory/arena.h"

#include <ATen/ATen.h>

#include "compile/draft/draft.h"
#include "exec/tensor.h"

namespace perigee::exec {

using Kind = compile::Frame::Kind;

std::vector<bool> frames_of_collectives(const compile::Program& program) {
  constexpr int64_t kLarge = 256 << 10;  // bytes
  std::vector<bool> used(program.frames.size());
  const auto mark = [&](graph::ValueId v) {
    if (!v.defined()) return;
    const auto& value = program.values[v.index];
    if (value.place.frame >= 0 && value.type.bytes() >= kLarge) used[value.place.frame] = true;
  };
  for (const auto& section : program.sections) {
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != compile::Instruction::Kind::collective) continue;
      if (compile::is_copy(instruction.op)) continue;
      compile::each_operand(instruction, mark);
      for (const auto v : instruction.outputs) mark(v);
    }
  }
  return used;
}

Arena::Arena(const std::vector<compile::Frame>& frames, Device& device,
             const std::vector<bool>& communicates)
    : place_(device.place()), memory_(std::make_shared<Memory>()) {
  const auto communicating = [&](size_t frame) {
    return frames[frame].kind == Kind::communication ||
           (!communicates.empty() && communicates[frame]);
  };
  const auto rounded = [](const compile::Frame& frame) { return (frame.bytes + 63) / 64 * 64; };
  int64_t host = 0, shares = 0;
  for (size_t i = 0; i < frames.size(); ++i) {
    const auto& frame = frames[i];
    if (frame.borrowed) continue;
    if (frame.held_by >= 0) {
      shares += frame.share();
      continue;
    }
    if (frame.host) {
      host += rounded(frame) * frame.copies;
      continue;
    }
    bytes_ += rounded(frame) * frame.copies;
    if (communicating(i)) communication_bytes_ += rounded(frame) * frame.copies;
  }
  memory_->plain = device.allocate(bytes_ - communication_bytes_, false);
  bytes_ += shares;
  if (communication_bytes_ > 0) {
    memory_->communication = device.allocate(communication_bytes_, true);
  }
  if (host > 0) memory_->host = device.allocate_host(host);
  auto* plain = memory_->plain.get();
  auto* shared = memory_->communication.get();
  auto* kept = memory_->host.get();
  for (size_t i = 0; i < frames.size(); ++i) {
    const auto& frame = frames[i];
    auto& copies = addresses_.emplace_back();
    if (frame.borrowed || frame.held_by >= 0) continue;
    auto*& next = frame.host ? kept : communicating(i) && shared ? shared : plain;
    for (int64_t copy = 0; copy < frame.copies; ++copy) {
      copies.push_back(next);
      next += rounded(frame);
    }
  }
}

void Arena::put(size_t frame, std::shared_ptr<std::byte> memory) {
  addresses_[frame] = {memory.get()};
  memory_->one_copy.push_back(std::move(memory));
}

std::vector<std::byte*> Arena::bases(const std::vector<int32_t>& slot) const {
  std::vector<std::byte*> bases;
  for (size_t frame = 0; frame < addresses_.size(); ++frame) {
    const auto& copies = addresses_[frame];
    if (copies.empty()) {
      bases.push_back(memory_->plain.get());
    } else {
      bases.push_back(copies.at(slot.empty() ? 0 : static_cast<size_t>(slot[frame])));
    }
  }
  return bases;
}

at::Tensor Arena::tensor(std::byte* address, const graph::TensorType& type,
                         const std::vector<int64_t>& strides, bool host) const {
  const at::Device place = host ? at::Device(at::kCPU) : place_;
  return at::from_blob(
      address, type.shape, strides, [memory = memory_](void*) {},
      at::TensorOptions().dtype(scalar_type(type.dtype)).device(place), place);
}

}  // namespace perigee::exec
