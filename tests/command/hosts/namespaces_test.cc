// Hosts with network stacks, names and hosts files of their own: Linux's namespaces. Skipped where
// the system does not permit them.
#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

namespace fs = std::filesystem;

bool succeeds(const std::string& command) {
  return std::system((command + " > /dev/null 2>&1").c_str()) == 0;
}

// Two hosts, "pg-a" at 10.93.0.1 and "pg-b" at 10.93.0.2, joined by a cable. Their names and those
// of their files contain the test's process id, so that several tests can run at once.
class TwoHosts {
 public:
  // `hosts`: the hosts file of each, without the line of localhost.
  TwoHosts(const std::string& first, const std::string& second) {
    ready_ = ::geteuid() == 0;
    for (const int host : {0, 1}) {
      ready_ = ready_ && succeeds("ip netns add " + name(host)) &&
               succeeds("ip -n " + name(host) + " link set lo up");
      if (!ready_) break;
      std::error_code error;
      fs::create_directories("/etc/netns/" + name(host), error);
      std::ofstream("/etc/netns/" + name(host) + "/hosts") << "127.0.0.1 localhost\n"
                                                           << (host == 0 ? first : second);
      std::ofstream("/etc/netns/" + name(host) + "/resolv.conf") << "";  // no name server
      ready_ = fs::exists("/etc/netns/" + name(host) + "/hosts");
    }
    ready_ = ready_ && succeeds("ip link add pgv0 netns " + name(0) +
                                " type veth peer name pgv1 netns " + name(1));
    for (const int host : {0, 1}) {
      const auto in = "ip -n " + name(host);
      const auto device = "pgv" + std::to_string(host);
      ready_ = ready_ &&
               succeeds(in + " addr add 10.93.0." + std::to_string(host + 1) + "/24 dev " +
                        device) &&
               succeeds(in + " link set " + device + " up");
    }
    // The mounts that `ip netns exec` makes may be forbidden where namespaces are not.
    ready_ = ready_ && succeeds("ip netns exec " + name(0) + " unshare --uts hostname pg-a");
    if (!ready_) WARN("this system permits no network namespaces: two hosts were not tested");
  }

  ~TwoHosts() {
    for (const int host : {0, 1}) {
      succeeds("ip netns delete " + name(host));
      std::error_code error;
      fs::remove_all("/etc/netns/" + name(host), error);
    }
  }

  bool ready() const { return ready_; }

  // Pulls the cable.
  void disconnect() const { succeeds("ip -n " + name(0) + " link set pgv0 down"); }

  // Returns the command as one that runs on the host.
  std::vector<std::string> on(int host, const std::vector<std::string>& command) const {
    std::vector<std::string> words = {
        "ip",
        "netns",
        "exec",
        name(host),
        "unshare",
        "--uts",
        "sh",
        "-c",
        "hostname " + std::string(host == 0 ? "pg-a" : "pg-b") + "; exec \"$@\"",
        "sh"};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

 private:
  static std::string name(int host) {
    return "perigee-" + std::to_string(::getpid()) + "-" + std::to_string(host);
  }
  bool ready_ = false;
};

// Trains on both hosts and checks that the losses are those of one host. The number of the host
// completes `more`, which ends with the name of an interface.
void check_training(const std::string& first, const std::string& second,
                    const std::string& rendezvous, const std::string& more = "") {
  const TwoHosts hosts(first, second);
  if (!hosts.ready()) return;
  const TrainingJob job;
  job.good("train", "--nproc 4");
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
