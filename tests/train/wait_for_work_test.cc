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

// Three ranks that wait for each other for at most a second, as their job says.
void run(const std::function<void(exec::Communicator&, const job::Job&)>& body) {
  job::Job job;
  job.cluster.timeout = 1;
  exec::run_ranks(3, [&](exec::Communicator& rank) { body(rank, job); }, {.timeout = 1000ms});
}

}  // namespace

TEST_CASE("a rank may work longer than the time-out while the others wait") {
  for (const int64_t workers : {1, 3}) {
    std::atomic<int> done = 0;
    run([&](exec::Communicator& rank, const job::Job& job) {
      const auto work = [&] {
        std::this_thread::sleep_for((2 + rank.rank()) * 700ms);
        ++done;
      };
      train::wait_for_work(*train::everyone(rank), job,
                           rank.rank() < workers ? std::function<void()>(work) : nullptr);
      if (done != workers) fail_run("test", "rank {} went on alone", rank.rank());
    });
  }
  // Without it, they do not wait so long.
  CHECK_THROWS_WITH(run([&](exec::Communicator& rank, const job::Job&) {
                      if (rank.rank() == 2) std::this_thread::sleep_for(1500ms);
                      train::barrier(rank);
                    }),
                    Catch::Matchers::Contains("[communicator]"));
}

TEST_CASE("work that fails is heard, and ends the others") {
  CHECK_THROWS_WITH(run([&](exec::Communicator& rank, const job::Job& job) {
                      const auto work = [&] { fail_run("test", "rank {} is out", rank.rank()); };
                      train::wait_for_work(
                          *train::everyone(rank), job,
                          rank.rank() == 1 ? std::function<void()>(work) : nullptr);
                    }),
                    "[test] rank 1 is out");
}
