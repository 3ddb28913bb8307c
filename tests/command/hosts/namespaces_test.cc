// Hosts with network stacks, names and hosts files of their own: Linux's namespaces. Skipped where
// the system does not permit them.

#include <signal.h>

#include <catch2/catch.hpp>
#include <memory>
#include <set>

#include "tests/command/hosts/sockets.h"
#include "tests/command/hosts/two_hosts.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

struct Training {
  std::string rendezvous;
  std::string interface = "";  // without the host's number; "": none is given
  std::string keys = "";       // of the job
  int ranks = 2;               // on each host
};

// Trains on both hosts, where they exist, and checks that the losses are those of one host, to
// rounding: ranks of a host add up their summands before the hosts do.
void check_training(const TwoHosts& hosts, const Training& training) {
  if (!hosts.ready()) return;
  const TrainingJob job;
  job.good("train", "--nproc " + std::to_string(2 * training.ranks) + " " + training.keys);
  const auto losses = job.losses();
  const auto words = [&](int host) {
    const auto number = std::to_string(host);
    std::string more = "--overwrite --nodes 2 --node-rank " + number + " --rendezvous " +
                       training.rendezvous + " --nproc " + std::to_string(training.ranks) + " " +
                       training.keys;
    if (!training.interface.empty()) more += " --interface " + training.interface + number;
    return hosts.on(host, job.words("train", more));
  };
  Process here(words(0), job.how()), there(words(1), job.how());
  const auto a = here.wait(), b = there.wait();
  INFO(a.err << b.err);
  CHECK(a.status == 0);
  CHECK(b.status == 0);
  CHECK_THAT(job.losses(), Catch::Matchers::Approx(losses).epsilon(1e-6));
  if (training.ranks == 1) CHECK(job.losses() == losses);
}

}  // namespace

TEST_CASE("hosts train whose own names resolve to loopback addresses") {
  const TwoHosts hosts("127.0.1.1 pg-a\n10.93.0.2 pg-b\n", "127.0.1.1 pg-b\n10.93.0.1 pg-a\n");
  check_training(hosts, {.rendezvous = "pg-a:29511"});
}

TEST_CASE("hosts train whose own names do not resolve") {
  check_training(TwoHosts("", ""), {.rendezvous = "10.93.0.1:29512"});
}

TEST_CASE("hosts train over a given interface") {
  check_training(TwoHosts("", ""), {.rendezvous = "10.93.0.1:29513", .interface = "pgv"});
}

TEST_CASE("a network that delays packets by 0.1 s and loses 5% of them changes no loss") {
  const TwoHosts hosts("", "", {.delay_seconds = 0.1, .loss = 0.05});
  check_training(hosts, {.rendezvous = "10.93.0.1:29515",
                         .keys = "--set train.steps=2 --set model.width=16",
                         .ranks = 1});
  if (hosts.ready()) CHECK(hosts.slow_cable().lost() > 0);
}

TEST_CASE("ranks of two hosts listen on their addresses in the rendezvous's network only") {
  const TwoHosts hosts("", "");
  if (!hosts.ready()) return;
  for (const bool torchrun : {false, true}) {
    const TrainingJob job;
    const auto start = [&](int host) {
      auto how = job.how();
      std::string more = kLong;
      if (torchrun) {
        how.environment.insert({{"RANK", std::to_string(host)},
                                {"WORLD_SIZE", "2"},
                                {"LOCAL_RANK", "0"},
                                {"LOCAL_WORLD_SIZE", "1"},
                                {"MASTER_ADDR", "10.93.0.1"},
                                {"MASTER_PORT", "29516"}});
      } else {
        more += "--nproc 1 --nodes 2 --rendezvous 10.93.0.1:29516 --node-rank " +
                std::to_string(host);
      }
      return std::make_unique<Process>(hosts.on(host, job.words("train", more)), how);
    };
    const auto here = start(0), there = start(1);
    here->wait_for("step 3/");
    CHECK(listening(here->pid()) == std::set<std::string>{"10.93.0.1"});
    CHECK(listening(there->pid()) == std::set<std::string>{"10.93.0.2"});
    here->signal(SIGTERM);
    CHECK(here->wait().status == 1);
    CHECK(there->wait().status == 1);
  }
}

TEST_CASE("a cut cable ends both hosts after the time-out") {
  const TwoHosts hosts("", "");
  if (!hosts.ready()) return;
  const TrainingJob job;
  const auto words = [&](int host) {
    return hosts.on(host, job.words("train",
                                    "--nproc 1 --nodes 2 --rendezvous 10.93.0.1:29514 "
                                    "--set cluster.timeout=3 --node-rank " +
                                        std::to_string(host) + kLong));
  };
  Process here(words(0), job.how()), there(words(1), job.how());
  here.wait_for("parameters");  // the log's first line of a run
  hosts.disconnect();
  const double cut = now();
  const auto a = here.wait(), b = there.wait();
  const double seconds = now() - cut;
  INFO(a.err << b.err);
  CHECK(seconds < 3 + 2);
  CHECK(a.status == 1);
  CHECK(b.status == 1);
  CHECK(is_short(b.err));
}
