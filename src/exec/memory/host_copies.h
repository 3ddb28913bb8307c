// Copies of bytes concurrent with a CPU rank's ops, as a GPU's copy engine makes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "exec/comm/communicator.h"

namespace perigee::exec {

// Runs copies one after the other on a thread of its own, started by the first copy.
class HostCopies {
 public:
  HostCopies() = default;
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;

  // Starts a copy between contiguous tensors with equally many bytes. The work keeps their memory
  // until it is done. Throws Error for other tensors.
  std::shared_ptr<Work> start(const at::Tensor& to, const at::Tensor& from);

 private:
  class Copy;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Copy>> queue_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace perigee::exec
