#include "exec/memory/host_copies.h"

#include <cstring>
#include <future>
#include <utility>

#include "base/fail.h"

namespace perigee::exec {

namespace {

class Copy : public Work {
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

}  // namespace

std::shared_ptr<Work> HostCopies::start(const at::Tensor& to, const at::Tensor& from) {
  if (to.nbytes() != from.nbytes() || !to.is_contiguous() || !from.is_contiguous()) {
    fail_run("exec", "a copy is between contiguous tensors of one size, but got {} and {} bytes",
             to.nbytes(), from.nbytes());
  }
  auto copy = std::make_shared<Copy>(to, from);
  thread_.add([copy] { copy->carry_out(); });
  last_ = copy;
  return copy;
}

void HostCopies::finish() {
  if (const auto last = last_.lock()) last->wait();
}

}  // namespace perigee::exec
