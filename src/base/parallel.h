// Independent pieces of work on all cores.
#pragma once

#include <cstddef>
#include <functional>

namespace perigee {

// Calls `work` once for each of 0 to count - 1, in any order, on as many threads as the process has
// cores, and returns when all have ended; within such work, on the thread that asks. Rethrows what
// the lowest of them threw. No thread is left behind: a process may fork afterwards.
void in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace perigee
