// Hosts of a job that come and go: launchers with ranks that do as the test says.
#include <netinet/in.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <optional>

#include "base/network/descriptor.h"
#include "tests/command/hosts/launched_job.h"
#include "train/run/exit_status.h"

using namespace perigee;
using Catch::Matchers::Contains;
using command::LaunchOptions;
using command::Place;
using test::LaunchedJob;
using test::Shared;

namespace {

// What the ranks of all hosts see.
struct Common {
  std::atomic<int> running{0};     // ranks that have started
  std::atomic<int> world{0};       // of the last that has
  std::atomic<int> again{0};       // likewise
  std::atomic<int> restarts{0};    // likewise
  std::atomic<int> generation{0};  // ranks of earlier ones lose their peers
  std::atomic<int> done{0};        // ranks end well
  std::atomic<int> broken{-1};     // the rank that fails by itself, once
  std::atomic<int> status{1};      // with which
};

volatile std::sig_atomic_t stop_asked = 0;
bool again = false;  // in a launcher: the job has trained before

int train(const Place& place, Common& common) {
  ::signal(SIGTERM, [](int) { stop_asked = 1; });
  const int generation = common.generation;
  common.world = static_cast<int>(place.world);
  common.again = again;
  common.restarts = std::atoi(::getenv("TORCHELASTIC_RESTART_COUNT"));
  ++common.running;
  for (;; ::usleep(2000)) {
    if (stop_asked) throw Error(train::kStopped, "train", "stopped by a signal");
    if (common.done) return 0;
    int rank = static_cast<int>(place.rank);
    if (common.broken.compare_exchange_strong(rank, -1)) {
      ++common.generation;
      throw Error(static_cast<Status>(common.status.load()), "test", "a bad disk");
    }
    if (generation < common.generation) {
      throw Error(Status::failed, "communicator", "rank 0 does not answer");
    }
  }
}

store::KeyedHash hash_of(const std::string& secret) {
  return [secret](std::string_view text) {
    return std::to_string(std::hash<std::string>{}(secret + "/" + std::string(text)));
  };
}

// Up to three launchers on this host.
class Hosts {
 public:
  Hosts() {
    void* memory = ::mmap(nullptr, sizeof(Common), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    common_ = new (memory) Common;
    options.nodes = 2;
    options.least_nodes = 1;
    options.rendezvous = "127.0.0.1:" + std::to_string(test::free_port());
    options.secret = "secret";
    options.backoff_seconds = 0.05;
    options.timeout_seconds = 10;
    options.before_round = [](const std::string&, bool trained) { again = trained; };
    options.agreement.keyed_hash = hash_of("secret");
  }
  ~Hosts() {
    for (auto& one : jobs_) one.reset();
    ::munmap(common_, sizeof(Common));
  }

  void start(int host) {
    options.node_rank = std::min(host, 1);
    jobs_[host] = std::make_unique<LaunchedJob>(
        options, [common = common_](const Place& place, Shared&) { return train(place, *common); });
  }
  void kill(int host) {
    ::kill(jobs_[host]->pid(), SIGKILL);
    jobs_[host]->status();
    ++common_->generation;
  }
  LaunchedJob& operator[](int host) { return *jobs_[host]; }
  Common& common() { return *common_; }

  // Waits until so many ranks have started since the test's begin.
  void wait_running(int ranks) {
    const double deadline = test::now() + 10;
    while (common_->running < ranks) {
      INFO("running: " << common_->running);
      REQUIRE(test::now() < deadline);
      ::usleep(2000);
    }
  }

  // Waits until a host listens at the rendezvous.
  void wait_listening() const {
    const auto port = std::stoi(options.rendezvous.substr(options.rendezvous.rfind(':') + 1));
    const double deadline = test::now() + 10;
    for (;;) {
      sockaddr_in address{};
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      address.sin_port = htons(static_cast<uint16_t>(port));
      const Descriptor probe(::socket(AF_INET, SOCK_STREAM, 0));
      if (::connect(probe.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0)
        return;
      REQUIRE(test::now() < deadline);
      ::usleep(2000);
    }
  }

  LaunchOptions options;

 private:
  Common* common_ = nullptr;
  std::unique_ptr<LaunchedJob> jobs_[3];
};

}  // namespace

TEST_CASE("with one host killed the other goes on, and takes the host in again") {
  Hosts hosts;
  for (const int host : {0, 1}) hosts.start(host);
  hosts.wait_running(2);
  CHECK(hosts.common().world == 2);
  CHECK(hosts.common().again == 0);
  hosts.kill(1);
  hosts.wait_running(3);
  CHECK(hosts.common().world == 1);
  CHECK(hosts.common().again == 1);
  hosts.start(1);
  hosts.wait_running(5);
  CHECK(hosts.common().world == 2);
  CHECK(hosts.common().again == 1);
  CHECK(hosts.common().restarts == 0);  // a change of hosts is none
  hosts.common().done = 1;
  CHECK(hosts[0].status() == 0);
  CHECK(hosts[1].status() == 0);
  CHECK_THAT(hosts[0].written(), Contains("does not answer; the job goes on from its newest "
                                          "checkpoint on 1 host\n") &&
                                     Contains("joins; the job goes on"));
}

TEST_CASE("another host takes over where that of the rendezvous is killed") {
  Hosts hosts;
  hosts.options.rendezvous += ",127.0.0.1:" + std::to_string(test::free_port());
  for (const int host : {0, 1}) hosts.start(host);
  hosts.wait_running(2);
  hosts.kill(0);
  hosts.wait_running(3);
  CHECK(hosts.common().world == 1);
  CHECK(hosts.common().again == 1);
  hosts.start(0);  // finds the keeper at its new host
  hosts.wait_running(5);
  CHECK(hosts.common().world == 2);
  hosts.common().done = 1;
  CHECK(hosts[0].status() == 0);
  CHECK(hosts[1].status() == 0);
  CHECK_THAT(hosts[1].written(), Contains("this host takes over the rendezvous"));
}

TEST_CASE("a host of the rendezvous that stood still joins the one that took over") {
  Hosts hosts;
  hosts.options.rendezvous += ",127.0.0.1:" + std::to_string(test::free_port());
  for (const int host : {0, 1}) hosts.start(host);
  hosts.wait_running(2);
  auto stopped = test::children(hosts[0].pid());
  stopped.push_back(hosts[0].pid());
  for (const auto pid : stopped) ::kill(pid, SIGSTOP);
  ++hosts.common().generation;
  hosts.wait_running(3);
  CHECK(hosts.common().world == 1);
  for (const auto pid : stopped) ::kill(pid, SIGCONT);
  hosts.wait_running(5);
  CHECK(hosts.common().world == 2);
  hosts.common().done = 1;
  CHECK(hosts[0].status() == 0);
  CHECK(hosts[1].status() == 0);
}

TEST_CASE("where the only host of the rendezvous is killed the others end and say so") {
  Hosts hosts;
  hosts.options.timeout_seconds = 2;
  for (const int host : {0, 1}) hosts.start(host);
  hosts.wait_running(2);
  hosts.kill(0);
  CHECK(hosts[1].status() == 1);
  CHECK_THAT(hosts[1].written(), Contains("(" + hosts.options.rendezvous + ")") &&
                                     Contains("within 2 s, but none does") &&
                                     Contains("another takes over"));
}

TEST_CASE("a failed rank has the job of a fixed number of hosts started again") {
  Hosts hosts;
  hosts.options.least_nodes = 2;
  hosts.options.max_restarts = 1;
  for (const int host : {0, 1}) hosts.start(host);
  hosts.wait_running(2);
  hosts.common().broken = 1;
  hosts.wait_running(4);
  CHECK(hosts.common().world == 2);
  CHECK(hosts.common().restarts == 1);
  hosts.common().broken = 0;
  for (const int host : {0, 1}) {
    CHECK(hosts[host].status() == 1);
    CHECK_THAT(hosts[host].written(), Contains("rank 1: [test] a bad disk: restart 1 of 1") &&
                                          Contains("rank 0: [test] a bad disk\n"));
  }
}

TEST_CASE("a wrong job and a signal end the launchers of all hosts with one status") {
  for (const bool wrong : {true, false}) {
    Hosts hosts;
    hosts.options.max_restarts = 3;
    for (const int host : {0, 1}) hosts.start(host);
    hosts.wait_running(2);
    if (wrong) {
      hosts.common().status = 2;
      hosts.common().broken = 1;
    } else {
      ::kill(hosts[1].pid(), SIGTERM);
    }
    CHECK(hosts[0].status() == (wrong ? 2 : 1));
    CHECK(hosts[1].status() == (wrong ? 2 : 1));
    CHECK(hosts.common().running == 2);
    CHECK_THAT(hosts[0].written(),
               Contains(wrong ? "rank 1: [test] a bad disk" : "ended by a signal (Terminated)"));
  }
}

TEST_CASE("a signal to a host that waits for the others ends it") {
  Hosts hosts;
  hosts.start(0);
  hosts.wait_listening();
  ::kill(hosts[0].pid(), SIGTERM);
  CHECK(hosts[0].status() == 1);
}

TEST_CASE("a host with another job or secret is refused, and the others go on") {
  Hosts hosts;
  hosts.start(0);
  hosts.options.agreement.difference = [](const std::string& others) {
    return others == "theirs" ? std::string() : "lr differs";
  };
  hosts.start(1);  // before the first round: the user corrects the command everywhere
  CHECK(hosts[1].status() == 2);
  CHECK(hosts[0].status() == 2);
  CHECK_THAT(hosts[0].written(), Contains("[job] lr differs"));

  Hosts running;
  running.options.timeout_seconds = 1;  // the last call, too
  running.start(0);
  running.wait_running(1);
  running.options.agreement.difference = [](const std::string&) { return "lr differs"; };
  running.start(1);
  CHECK(running[1].status() == 2);
  running.options.agreement = {.keyed_hash = hash_of("guess")};
  running.start(2);
  CHECK(running[2].status() == 2);
  CHECK_THAT(running[2].written(), Contains("the job's secret"));
  CHECK(running.common().running == 1);
  running.common().done = 1;
  CHECK(running[0].status() == 0);
}
