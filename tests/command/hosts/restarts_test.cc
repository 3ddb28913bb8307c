// The launcher starts a failed job again, on one host.
#include <signal.h>
#include <stdlib.h>

#include <catch2/catch.hpp>

#include "tests/command/hosts/launched_job.h"
#include "tests/command/support.h"

using namespace perigee;
using Catch::Matchers::Contains;
using command::Place;
using test::LaunchedJob;
using test::Shared;

namespace {

// Returns an integer of the environment, -1 where it is not set.
int64_t variable(const char* name) {
  const char* value = ::getenv(name);
  return value ? std::atoll(value) : -1;
}

int64_t restarts() { return variable("TORCHELASTIC_RESTART_COUNT"); }

[[noreturn]] void fail_at_disk() { throw Error(Status::failed, "test", "a bad disk"); }

}  // namespace

TEST_CASE("a job whose rank failed is started again, with a line each") {
  static bool again = false;
  LaunchedJob job({.ranks = 2,
                   .before_round = [](const std::string&, bool trained) { again = trained; },
                   .max_restarts = 3,
                   .backoff_seconds = 0.01},
                  [](const Place& place, Shared& shared) -> int {
                    ++shared.ready;
                    if (again != (restarts() > 0) || variable("RANK") != place.rank) return 4;
                    if (restarts() == 2) return 0;
                    if (place.rank == 0) return test::wait_to_stop(place, shared);
                    if (restarts() == 1) ::kill(::getpid(), SIGKILL);
                    fail_at_disk();
                  });
  CHECK(job.status() == 0);
  CHECK(job.shared().ready >= 4);  // rank 0 may be stopped before it counts
  CHECK_THAT(job.written(),
             Contains("warning: [launch] rank 1: [test] a bad disk: restart 1 of 3 from the newest "
                      "checkpoint in 0.01 s") &&
                 Contains("rank 1 was killed by signal 9") &&
                 Contains("restart 2 of 3 from the newest checkpoint in 0.02 s"));
}

TEST_CASE("a job that fails after its last restart ends with the failure's status and message") {
  LaunchedJob job({.max_restarts = 1, .backoff_seconds = 0.01},
                  [](const Place&, Shared& shared) -> int {
                    ++shared.ready;
                    fail_at_disk();
                  });
  CHECK(job.status() == 1);
  CHECK(job.shared().ready == 2);
  CHECK(count(job.written(), "a bad disk") == 2);
  CHECK_THAT(job.written(), Contains("\nperigee: [test] a bad disk\n"));
}

TEST_CASE("a transient fault of a step starts the job again") {
  LaunchedJob job({.max_restarts = 1, .backoff_seconds = 0.01}, [](const Place&, Shared& s) {
    ++s.ready;
    return restarts() > 0 ? 0 : 16;
  });
  CHECK(job.status() == 0);
  CHECK(job.shared().ready == 2);
}

TEST_CASE("failures that a restart cannot mend end the job") {
  for (const int status : {2, 3, 17}) {
    LaunchedJob job({.max_restarts = 5, .backoff_seconds = 0.01},
                    [status](const Place&, Shared& s) {
                      ++s.ready;
                      return status;
                    });
    CHECK(job.status() == status);
    CHECK(job.shared().ready == 1);
  }
}

TEST_CASE("a signal ends the job, also between two starts") {
  for (const bool running : {true, false}) {
    LaunchedJob job({.max_restarts = 5, .backoff_seconds = running ? 0.01 : 30},
                    [running](const Place& place, Shared& shared) -> int {
                      if (running) return test::wait_to_stop(place, shared);
                      ++shared.ready;
                      fail_at_disk();
                    });
    job.wait_ready(1);
    if (!running) job.wait_for("restart 1 of 5");
    ::kill(job.pid(), SIGTERM);
    CHECK(job.status() == 1);
    CHECK(job.shared().ready == 1);
    CHECK_THAT(job.written(), Contains("the ranks were ended by a signal"));
  }
}

TEST_CASE("a launcher whose parent ignores the ends of children sees those of its ranks") {
  ::signal(SIGCHLD, SIG_IGN);  // inherited
  LaunchedJob job({.ranks = 2},
                  [](const Place& place, Shared&) { return place.rank == 1 ? 3 : 0; });
  ::signal(SIGCHLD, SIG_DFL);
  CHECK(job.status() == 3);
}
