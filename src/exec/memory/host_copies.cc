#include "exec/memory/host_copies.h"

#include <cstring>
#include <future>
#include <utility>

#include "base/fail.h"

namespace perigee::exec {

class HostCopies::Copy : public Work {
 public:
  Copy(at::Tensor to, at::Tensor from) : to_(std::move(to)), from_(std::move(from)) {}

  void wait() override { done_.wait(); }

  void carry_out() {
    began = now();
    if (to_.nbytes() > 0) std::memcpy(to_.mutable_data_ptr(), from_.const_data_ptr(), to_.nbytes());
    ended = now();
    promise_.set_value();
  }

 private:
  at::Tensor to_, from_;
  std::promise<void> promise_;
  std::shared_future<void> done_ = promise_.get_future().share();
};

HostCopies::~HostCopies() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<Work> HostCopies::start(const at::Tensor& to, const at::Tensor& from) {
  if (to.nbytes() != from.nbytes() || !to.is_contiguous() || !from.is_contiguous()) {
    fail_run("exec", "a copy is between contiguous tensors of one size, but got {} and {} bytes",
             to.nbytes(), from.nbytes());
  }
  auto copy = std::make_shared<Copy>(to, from);
  {
    std::lock_guard lock(mutex_);
    queue_.push_back(copy);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  }
  changed_.notify_all();
  return copy;
}

void HostCopies::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ends_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto copy = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    copy->carry_out();
    lock.lock();
  }
}

}  // namespace perigee::exec
