// A thread that runs tasks beside a rank's ops: copies to the host, and collectives of groups whose
// library has no queue of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace perigee::exec {

// Runs tasks one after the other, in the order of add(), on a thread that the first of them starts.
// Ops on it use no other threads and record no gradients. The destructor waits for the task that
// runs, and drops those that have not begun.
class TaskThread {
 public:
  TaskThread() = default;
  ~TaskThread();
  TaskThread(const TaskThread&) = delete;

  // `task` throws nothing.
  void add(std::function<void()> task);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace perigee::exec
