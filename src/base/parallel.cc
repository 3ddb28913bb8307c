#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace perigee {
namespace {

thread_local bool within = false;
thread_local size_t limit = 0;  // 0: none

}  // namespace

void in_parallel(size_t count, const std::function<void(size_t)>& work) {
  std::vector<std::exception_ptr> thrown(count);
  std::atomic<size_t> next = 0;
  const auto run = [&] {
    const bool outer = within;
    within = true;
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        thrown[i] = std::current_exception();
      }
    }
    within = outer;
  };
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const size_t most = limit > 0 ? std::min(limit, cores) : cores;
  const size_t threads = within ? 1 : std::min(most, count);
  std::vector<std::thread> others;
  try {
    while (others.size() + 1 < threads) others.emplace_back(run);
  } catch (const std::system_error&) {
    // The system has no more threads: the existing ones do all work.
  }
  run();
  for (auto& thread : others) thread.join();
  for (const auto& one : thrown) {
    if (one) std::rethrow_exception(one);
  }
}

ThreadLimit::ThreadLimit(size_t threads) : before_(std::exchange(limit, threads)) {}

ThreadLimit::~ThreadLimit() { limit = before_; }

}  // namespace perigee
