// Copies of bytes concurrent with a CPU rank's ops, as a GPU's copy engine makes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "exec/comm/communicator.h"
#include "exec/task_thread.h"

namespace perigee::exec {

// Runs copies one after the other on a thread of its own, started by the first copy.
class HostCopies {
 public:
  // Starts a copy between contiguous tensors with equally many bytes. The work keeps their memory
  // until it is done. Throws Error for other tensors.
  std::shared_ptr<Work> start(const at::Tensor& to, const at::Tensor& from);

  // Waits until all copies are done.
  void finish();

 private:
  std::weak_ptr<Work> last_;
  TaskThread thread_;
};

}  // namespace perigee::exec
