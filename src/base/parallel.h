// Independent pieces of work on all cores.
#pragma once

#include <cstddef>
#include <functional>

namespace perigee {

// Calls `work` once for each of 0 to count - 1, in any order, on as many threads as the
// process has cores, and returns when all have ended; a call within such work uses its own
// thread only. Rethrows the error of the lowest index. All threads are joined, so that the
// process may fork afterwards.
void in_parallel(size_t count, const std::function<void(size_t)>& work);

// While one lives, in_parallel on this thread uses at most so many threads; 0: as many as cores.
class ThreadLimit {
 public:
  explicit ThreadLimit(size_t threads);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

 private:
  size_t before_;
};

}  // namespace perigee
