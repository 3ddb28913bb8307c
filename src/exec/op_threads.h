// How many threads LibTorch's ops and Perigee's kernels use on a thread of the process.
#pragma once

namespace perigee::exec {

// Sets the number for ops of the calling thread, which no other thread changes. In place of
// at::set_num_threads, by which a thread may get the number that another one has set last.
void set_op_threads(int count);

// Returns the number for ops of the calling thread.
int op_threads();

// Sets the number for as long as it lives.
class OpThreads {
 public:
  explicit OpThreads(int count) : before_(op_threads()) { set_op_threads(count); }
  ~OpThreads() { set_op_threads(before_); }
  OpThreads(const OpThreads&) = delete;

 private:
  int before_;
};

}  // namespace perigee::exec
