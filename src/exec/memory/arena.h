// The memory of one program's frames.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "compile/program.h"
#include "exec/device.h"

namespace perigee::exec {

// Returns, by frame, whether collectives between ranks have large operands or results in it.
// Smaller ones are copied faster than the host maps them.
std::vector<bool> frames_of_collectives(const compile::Program& program);

// The frames, zeroed: one allocation for all, one for frames that collectives use and one in the
// host's memory. All are freed with the arena's last tensor.
class Arena {
 public:
  // `communicates`, by frame: collectives use it, though it is of another kind. Throws Error when
  // there is not enough memory.
  Arena(const std::vector<compile::Frame>& frames, Device& device,
        const std::vector<bool>& communicates = {});

  // Gives a frame of one copy (Frame::held_by) its memory.
  void put(size_t frame, std::shared_ptr<std::byte> memory);

  // Returns the address of each frame: of the copy that `slot` (an entry of Program::slots) names,
  // or of the first copy where it is empty.
  std::vector<std::byte*> bases(const std::vector<int32_t>& slot = {}) const;
  // Returns the allocation of the frames that collectives use, and its size: 0 without such frames.
  const std::shared_ptr<std::byte>& communication() const { return memory_->communication; }
  int64_t communication_bytes() const { return communication_bytes_; }
  // Returns the size of the frames on the device: of those of one copy, the rank's shares.
  int64_t bytes() const { return bytes_; }

  // Returns a tensor at `address`, on the device or (`host`) in the host's memory. It keeps the
  // arena's memory alive.
  at::Tensor tensor(std::byte* address, const graph::TensorType& type,
                    const std::vector<int64_t>& strides, bool host = false) const;

 private:
  struct Memory {
    std::shared_ptr<std::byte> plain, communication, host;
    std::vector<std::shared_ptr<std::byte>> one_copy;
  };
  at::Device place_;
  std::shared_ptr<Memory> memory_;
  std::vector<std::vector<std::byte*>> addresses_;  // by frame, by copy
  int64_t bytes_ = 0, communication_bytes_ = 0;
};

}  // namespace perigee::exec
