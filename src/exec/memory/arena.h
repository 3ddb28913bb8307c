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

// The frames, zeroed: one allocation (and one for those that collectives touch, and one in the
// host's memory), given back when the last tensor that lies in it is gone.
class Arena {
 public:
  // Throws Error when there is not enough memory.
  Arena(const std::vector<compile::Frame>& frames, Device& device);

  // Addresses of the frames, by frame: of the copies that the slot of Program::slots names, or of
  // the first ones where it is empty.
  std::vector<std::byte*> bases(const std::vector<int32_t>& slot = {}) const;
  // Of the device's memory.
  int64_t bytes() const { return bytes_; }

  // Returns a tensor at `address`, on the device or in the host's memory, which keeps
  // the arena alive.
  at::Tensor tensor(std::byte* address, const graph::TensorType& type,
                    const std::vector<int64_t>& strides, bool host = false) const;

 private:
  struct Memory {
    std::shared_ptr<std::byte> plain, communication, host;
  };
  at::Device place_;
  std::shared_ptr<Memory> memory_;
  std::vector<std::vector<std::byte*>> addresses_;  // by frame, by copy
  int64_t bytes_ = 0;
};

}  // namespace perigee::exec
