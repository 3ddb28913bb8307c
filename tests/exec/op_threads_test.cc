#include "exec/op_threads.h"

#include <ATen/ATen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

namespace perigee::exec {
namespace {

// Sets the number in several threads at once. Ends this process, a child of fork.
[[noreturn]] void set_at_once() {
  alarm(20);
  constexpr int kThreads = 4;
  std::atomic<int> ready = 0, right = 0;
  std::vector<std::thread> threads;
  for (int k = 0; k < kThreads; ++k) {
    threads.emplace_back([&] {
      ++ready;
      while (ready < kThreads) {
      }
      set_op_threads(3);
      right += op_threads() == 3 ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  _exit(right == kThreads ? 0 : 1);
}

TEST_CASE("threads of a forked process may set their number of op threads at the same time") {
  const int before = op_threads();
  set_op_threads(before + 1);  // LibTorch has made its pool of threads
  set_op_threads(before);
  for (int round = 0; round < 50; ++round) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) set_at_once();
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
}

}  // namespace
}  // namespace perigee::exec
