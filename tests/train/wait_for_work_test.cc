#include "tests/support/torch_test.h"

// The other headers come after LibTorch's.
#include <atomic>
#include <chrono>
#include <thread>

#include "base/fail.h"
#include "exec/comm/threads.h"
#include "train/ranks/share.h"
#include "train/ranks/wait_for_work.h"

using namespace perigee;
using namespace std::chrono_literals;

namespace {

// Runs `body` on three ranks of a job whose time-out is one second.
void run_three(const std::function<void(exec::Communicator&, const job::Job&)>& body) {
  job::Job job;
  job.cluster.timeout = 1;
  exec::run_ranks(3, [&](exec::Communicator& rank) { body(rank, job); }, {.timeout = 1000ms});
}

}  // namespace

TEST_CASE("a rank may work longer than the time-out while the others wait") {
  for (const int64_t workers : {1, 3}) {
    std::atomic<int> done = 0;
    run_three([&](exec::Communicator& rank, const job::Job& job) {
      const auto work = [&] {
        std::this_thread::sleep_for((2 + rank.rank()) * 700ms);
        ++done;
      };
      train::wait_for_work(*train::everyone(rank), job,
                           rank.rank() < workers ? std::function<void()>(work) : nullptr);
      if (done != workers) fail_run("test", "rank {} did not wait for the others", rank.rank());
    });
  }
  // A barrier without wait_for_work fails after the time-out.
  CHECK_THROWS_WITH(run_three([&](exec::Communicator& rank, const job::Job&) {
                      if (rank.rank() == 2) std::this_thread::sleep_for(1500ms);
                      train::barrier(rank);
                    }),
                    Catch::Matchers::Contains("[communicator]"));
}

TEST_CASE("the error of a rank's work ends the waiting ranks") {
  CHECK_THROWS_WITH(run_three([&](exec::Communicator& rank, const job::Job& job) {
                      const auto work = [&] { fail_run("test", "rank {} failed", rank.rank()); };
                      train::wait_for_work(
                          *train::everyone(rank), job,
                          rank.rank() == 1 ? std::function<void()>(work) : nullptr);
                    }),
                    "[test] rank 1 failed");
}
