#include "train/ranks/wait_for_work.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

namespace perigee::train {
namespace {

// Reports to the other ranks whether this one still works.
class Pulse {
 public:
  Pulse(exec::Group& group, const job::Job& job, bool busy)
      : group_(group), interval_(std::min(1.0, job.cluster.timeout / 4)), busy_(busy) {}

  // Exchanges pulses until no rank is busy, or this one has failed.
  void run() {
    const auto any = at::zeros({1}, at::kLong);
    do {
      {
        std::unique_lock lock(mutex_);
        changed_.wait_for(lock, interval_, [&] { return !busy_; });
        if (failed_) return;
        *any.data_ptr<int64_t>() = busy_;
      }
      group_.run({.input = any, .output = any, .reduce = mesh::Reduce::max});
    } while (*any.data_ptr<int64_t>() != 0);
  }

  void end(bool failed) {
    {
      std::lock_guard lock(mutex_);
      busy_ = false;
      failed_ = failed;
    }
    changed_.notify_all();
  }

 private:
  exec::Group& group_;
  const std::chrono::duration<double> interval_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool busy_, failed_ = false;
};

}  // namespace

void wait_for_work(exec::Group& group, const job::Job& job, const std::function<void()>& work) {
  if (group.size() == 1) {
    if (work) work();
    return;
  }
  Pulse pulse(group, job, work != nullptr);
  if (!work) return pulse.run();
  std::exception_ptr connection_error;
  std::thread pulse_thread([&] {
    try {
      pulse.run();
    } catch (...) {
      connection_error = std::current_exception();
    }
  });
  std::exception_ptr failed;
  try {
    work();
  } catch (...) {
    failed = std::current_exception();
  }
  pulse.end(failed != nullptr);
  pulse_thread.join();
  if (failed) std::rethrow_exception(failed);
  if (connection_error) std::rethrow_exception(connection_error);
}

}  // namespace perigee::train
