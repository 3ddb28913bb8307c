#include "exec/task_thread.h"

#include <c10/core/GradMode.h>

#include <utility>

#include "exec/op_threads.h"

namespace perigee::exec {

TaskThread::~TaskThread() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void TaskThread::add(std::function<void()> task) {
  {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
}

void TaskThread::run() {
  set_op_threads(1);
  c10::AutoGradMode no_grad(false);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (ends_) return;
    const auto task = std::exchange(tasks_.front(), {});
    tasks_.pop_front();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace perigee::exec
