// Copies of bytes beside a CPU rank's ops, as a GPU's copy engine makes them.
#pragma once

#include <ATen/core/Tensor.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "exec/comm/communicator.h"

namespace perigee::exec {

// One after the other, on a thread that the first one starts.
class HostCopies {
 public:
  HostCopies() = default;
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;

  // `to` and `from` are contiguous, of as many bytes, and keep their memory until the work is done.
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
