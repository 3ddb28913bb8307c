// Hosts with network stacks, names and hosts files of their own: Linux's namespaces. Skipped where
// the system does not permit them.

#include <catch2/catch.hpp>

#include "tests/command/hosts/two_hosts.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

// Trains on both hosts and checks that the losses are those of one host. The number of the host
// completes `more`, which ends with the name of an interface.
void check_training(const std::string& first, const std::string& second,
                    const std::string& rendezvous, const std::string& more = "") {
  const TwoHosts hosts(first, second);
  if (!hosts.ready()) return;
  const TrainingJob job;
  // Gloo adds up in an order of its own, so the last bits are those of one host that uses it.
  job.good("train", "--nproc 4 --set cluster.communicator=gloo");
  const auto losses = job.losses();
  const auto words = [&](int host) {
    return hosts.on(
        host, job.words("train", "--overwrite --nproc 2 --nodes 2 --node-rank " +
                                     std::to_string(host) + " --rendezvous " + rendezvous + " " +
                                     more + (more.empty() ? "" : std::to_string(host))));
  };
  Process here(words(0), job.how()), there(words(1), job.how());
  const auto a = here.wait(), b = there.wait();
  INFO(a.err << b.err);
  CHECK(a.status == 0);
  CHECK(b.status == 0);
  CHECK(job.losses() == losses);
}

}  // namespace

TEST_CASE("hosts train whose own names resolve to loopback addresses") {
  check_training("127.0.1.1 pg-a\n10.93.0.2 pg-b\n", "127.0.1.1 pg-b\n10.93.0.1 pg-a\n",
                 "pg-a:29511");
}

TEST_CASE("hosts train whose own names do not resolve") {
  check_training("", "", "10.93.0.1:29512");
}

TEST_CASE("hosts train over a given interface") {
  check_training("", "", "10.93.0.1:29513", "--interface pgv");
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
  const auto a = here.wait(), b = there.wait();
  INFO(a.err << b.err);
  CHECK(a.status == 1);
  CHECK(b.status == 1);
  CHECK(is_short(b.err));
}
