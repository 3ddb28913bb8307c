// Ranks that other launchers start, and several launchers of the command.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <memory>
#include <set>

#include "tests/command/hosts/sockets.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

using Environment = std::map<std::string, std::string>;

// Returns a process's environment under a launcher.
Environment torchrun(int rank) {
  const auto text = std::to_string(rank);
  return {{"RANK", text},
          {"WORLD_SIZE", "2"},
          {"LOCAL_RANK", text},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "127.0.0.1"}};
}
Environment slurm(int rank) {
  const auto text = std::to_string(rank);
  return {{"SLURM_PROCID", text},
          {"SLURM_STEP_NUM_TASKS", "2"},
          {"SLURM_LOCALID", text},
          {"SLURM_STEP_TASKS_PER_NODE", "2"},
          {"SLURM_STEP_NODELIST", "localhost"},
          {"SLURM_JOB_ID", "4711"}};
}
Environment open_mpi(int rank) {
  const auto text = std::to_string(rank);
  return {{"OMPI_COMM_WORLD_RANK", text},
          {"OMPI_COMM_WORLD_SIZE", "2"},
          {"OMPI_COMM_WORLD_LOCAL_RANK", text},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
}
Environment mpich(int rank) { return {{"PMI_RANK", std::to_string(rank)}, {"PMI_SIZE", "2"}}; }

// The two processes of a job that another launcher has started.
struct Pair {
  Pair(const TrainingJob& job, Environment (*launcher)(int), const std::string& more) {
    const auto port = std::to_string(free_port());
    for (const int rank : {0, 1}) {
      auto how = job.how();
      how.environment.merge(launcher(rank));
      how.environment["MASTER_PORT"] = port;
      ranks.push_back(std::make_unique<Process>(job.words("train", more), how));
    }
  }
  std::vector<std::unique_ptr<Process>> ranks;
};

}  // namespace

TEST_CASE("processes that torchrun, Slurm or mpirun start are ranks of one job") {
  const TrainingJob job;
  job.good("train", "--nproc 2");
  const auto losses = job.losses();
  for (const auto launcher : {torchrun, slurm, open_mpi, mpich}) {
    Pair pair(job, launcher, "--overwrite");
    const auto ran = pair.ranks[0]->wait();
    INFO(ran.err);
    CHECK(ran.status == 0);
    CHECK(pair.ranks[1]->wait().status == 0);
    CHECK(job.losses() == losses);
  }
}

TEST_CASE("under another launcher each rank reports its own error and ends") {
  const TrainingJob job;
  Pair pair(job, torchrun, kLong);
  pair.ranks[0]->wait_for("step 3/");
  pair.ranks[1]->signal(SIGKILL);
  const auto ran = pair.ranks[0]->wait();
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, Contains("rank 1 does not answer"));
  pair.ranks[1]->wait();
  auto incomplete = torchrun(0);
  incomplete.erase("MASTER_ADDR");
  incomplete["LOCAL_WORLD_SIZE"] = "1";
  const auto missing = run("train " + job.file() + " --overwrite", {.environment = incomplete});
  CHECK(missing.status == 2);
  CHECK_THAT(missing.err, Contains("MASTER_ADDR"));
}

TEST_CASE("under another launcher a port in use is an error that names it") {
  const TrainingJob job;
  const int taken = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  socklen_t size = sizeof address;
  REQUIRE(::bind(taken, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(taken, 1) == 0);
  ::getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  auto how = job.how();
  how.environment.merge(torchrun(0));
  const auto port = std::to_string(ntohs(address.sin6_port));
  how.environment["MASTER_PORT"] = port;
  const auto ran = run("train " + job.file(), how);
  CHECK(ran.status == 1);
  CHECK(is_short(ran.err));
  CHECK_THAT(ran.err, Contains(port) && Contains("in use"));
  ::close(taken);
}

TEST_CASE("ranks of another launcher on one host listen on the loopback interface only") {
  // A socket on all addresses is seen.
  const int open = ::socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(::listen(open, 1) == 0);
  CHECK(listening(::getpid()).contains("0.0.0.0"));
  ::close(open);

  const TrainingJob job;
  Pair pair(job, torchrun, kLong + "--set cluster.communicator=gloo");
  pair.ranks[0]->wait_for("step 3/");
  for (const auto& rank : pair.ranks) {
    CHECK(listening(rank->pid()) == std::set<std::string>{"127.0.0.1"});
  }
  pair.ranks[0]->signal(SIGTERM);
  for (const auto& rank : pair.ranks) CHECK(rank->wait().status == 1);
}

TEST_CASE("two launchers on one host train together") {
  const TrainingJob job;
  // One plan, and one order of its sums: the launchers choose both by the ranks of their own host.
  const std::string same = " --strategy ddp --set cluster.threads=1";
  job.good("train", "--nproc 2" + same);
  const auto losses = job.losses();
  const auto node = [&](int rank) {
    return job.words("train",
                     "--overwrite --nproc 1 --nodes 2 --node-rank " + std::to_string(rank) + same);
  };
  auto zero = node(0), one = node(1);
  const auto port = "127.0.0.1:" + std::to_string(free_port());
  for (auto* command : {&zero, &one}) command->insert(command->end(), {"--rendezvous", port});
  Process first(zero, job.how()), second(one, job.how());
  const auto ran = first.wait();
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK(second.wait().status == 0);
  CHECK(job.losses() == losses);
}

TEST_CASE("a rank that dies on one host ends the ranks of the others") {
  const TrainingJob job;
  const auto port = "--rendezvous 127.0.0.1:" + std::to_string(free_port());
  const auto node = [&](int rank) {
    return job.words(
        "train", "--nproc 1 --nodes 2 --node-rank " + std::to_string(rank) + " " + port + kLong);
  };
  Process first(node(0), job.how()), second(node(1), job.how());
  first.wait_for("step 3/");
  ::kill(children(second.pid()).at(0), SIGKILL);
  const auto here = first.wait(), there = second.wait();
  CHECK(here.status == 1);
  CHECK(there.status == 1);
  CHECK_THAT(here.err, Contains("rank 1 does not answer"));
  CHECK_THAT(there.err, Contains("rank 1 was killed by signal 9"));
}

TEST_CASE("a host that stands still is named soon after the time-out") {
  for (const int victim : {1, 0}) {  // that without and with the store
    const TrainingJob job;
    const auto port = std::to_string(free_port());
    const auto start = [&](int host) {
      return std::make_unique<Process>(
          job.words("train",
                    "--nproc 1 --nodes 2 --set cluster.timeout=2 "
                    "--set cluster.communicator=gloo --rendezvous 127.0.0.1:" +
                        port + " --node-rank " + std::to_string(host) + kLong),
          job.how());
    };
    const std::unique_ptr<Process> hosts[2] = {start(0), start(1)};
    hosts[0]->wait_for("step 3/");
    const auto processes = family(hosts[victim]->pid());
    for (const auto process : processes) ::kill(process, SIGSTOP);
    const double stopped = now();
    hosts[1 - victim]->wait_for(victim == 0 ? "rank 0, which has the store, does not answer"
                                            : "rank 1 does not answer");
    const double seconds = now() - stopped;
    CHECK(seconds < 2 + 2);
    for (const auto process : processes) ::kill(process, SIGCONT);
    for (const auto& host : hosts) CHECK(host->wait().status == 1);
  }
}
