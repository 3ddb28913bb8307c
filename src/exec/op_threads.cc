#include "exec/op_threads.h"

#include <ATen/Parallel.h>

#include <mutex>

namespace perigee::exec {
namespace {

// In a child of fork LibTorch makes its pool of threads anew when numbers of threads are first set,
// which two threads must not do at once.
std::mutex setting;

}  // namespace

int op_threads() {
  // A thread's number becomes the one that was set last in the process when its ops first ask for
  // it. LibTorch and this library each take note on their own that this has happened: both ask now.
  [[maybe_unused]] thread_local const bool asked = [] {
    const std::lock_guard lock(setting);
    at::internal::lazy_init_num_threads();
    return true;
  }();
  return at::get_num_threads();
}

void set_op_threads(int count) {
  if (op_threads() == count) return;
  const std::lock_guard lock(setting);
  at::set_num_threads(count);
}

}  // namespace perigee::exec
