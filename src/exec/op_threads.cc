#include "exec/op_threads.h"

#include <ATen/Parallel.h>

namespace perigee::exec {

int op_threads() {
  // A thread's number becomes the one that was set last in the process when its ops first ask for
  // it. LibTorch and this library each take note on their own that this has happened: both ask now.
  at::internal::lazy_init_num_threads();
  return at::get_num_threads();
}

void set_op_threads(int count) {
  if (op_threads() != count) at::set_num_threads(count);
}

}  // namespace perigee::exec
