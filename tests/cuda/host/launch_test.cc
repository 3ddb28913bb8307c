// The launch on the host shows faults of kernels: a barrier or a bound that is missing.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <numeric>

#include "tests/cuda/host/faulty.h"
#include "tests/cuda/host/thread_order.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

TEST_CASE("a missing barrier gives a wrong result in both orders of threads") {
  std::array<int, kBlock> from{}, to{};
  std::iota(from.begin(), from.end(), 1);
  const std::vector<int> reversed(from.rbegin(), from.rend());
  for (const auto order : {ThreadOrder::ascending, ThreadOrder::descending}) {
    thread_order = order;
    const auto result = [&](bool barrier) {
      // The values of an earlier block would hide the missing barrier.
      const std::array<int, kBlock> zeros{};
      reverse_block(zeros.data(), to.data(), true);
      reverse_block(from.data(), to.data(), barrier);
      return std::vector<int>(to.begin(), to.end());
    };
    CHECK(result(true) == reversed);
    CHECK(result(false) != reversed);
  }
}

TEST_CASE("a barrier that some threads never reach is an error") {
  std::array<int, kBlock> to{};
  REQUIRE_THROWS_WITH(half_of_a_block_waits(to.data()), Catch::Contains("waited at a barrier"));
  REQUIRE_THROWS_WITH(half_of_a_warp_waits(to.data()), Catch::Contains("waited at a barrier"));
}

TEST_CASE("a write beyond a tensor ends the process") {
  const auto exit_status = [](bool bound) {
    const pid_t child = fork();
    if (child == 0) {
      close(STDERR_FILENO);  // the sanitizer's report
      auto to = std::make_unique<int[]>(5);
      fill_elements(to.get(), 5, bound);
      _exit(to[4] == 7 ? 0 : 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  CHECK(exit_status(true) == 0);
  CHECK(exit_status(false) == 1);
}

}  // namespace
}  // namespace perigee::cuda
