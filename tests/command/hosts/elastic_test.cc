// Training that starts again: on one host after a failure, and on hosts that come and go.
#include <signal.h>

#include <catch2/catch.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/command/hosts/sockets.h"
#include "tests/command/hosts/two_hosts.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

const std::string kSteps =
    "--set model.dtype=float64 --set train.steps=300 --set train.log_every=1 "
    "--set train.checkpoint_every=2 --set cluster.timeout=5 ";

constexpr double kTimeout = 5;  // cluster.timeout of kSteps

// Returns the losses of the same training on one host, never interrupted.
std::vector<double> uninterrupted() {
  const TrainingJob job;
  job.good("train", kSteps + "--nproc 1");
  return job.losses();
}

// Returns the number of ranks in the mesh of the run's plan.
int64_t ranks_of_plan(const TrainingJob& job) {
  int64_t ranks = 1;
  const auto plan = nlohmann::json::parse(read(job.output() + "/plan.json"));
  for (const auto& axis : plan["mesh"]["axes"]) ranks *= axis["size"].get<int64_t>();
  return ranks;
}

// Checks that the host's ranks train alone, with a plan of their own, within the time-out and 5 s of
// the other host's loss.
void check_alone(const TrainingJob& job, Process& left, double lost) {
  left.wait_for("the job goes on from its newest checkpoint on 1 host");
  left.wait_for("parameters, 1 rank,");  // the round's first line
  const double seconds = now() - lost;
  CHECK(seconds < kTimeout + 5);
  left.wait_for("step 60/");
  CHECK(ranks_of_plan(job) == 1);
}

// Waits until a launcher has its keeper, its watcher and a rank, and returns the rank.
pid_t rank_of(pid_t launcher, size_t processes) {
  const double deadline = now() + 20;
  for (;;) {
    const auto found = children(launcher);
    if (found.size() == processes) return found.back();
    REQUIRE(now() < deadline);
    ::usleep(2000);
  }
}

}  // namespace

TEST_CASE("a first start with --resume-if-any begins anew, later ones resume") {
  const TrainingJob job, whole;
  const std::string same = "--resume-if-any --set train.checkpoint_every=2 ";
  const std::string more = "--nproc 2 " + same;
  job.good("train", more + "--set train.steps=4");
  const auto again = job.good("train", same + "--set train.steps=6");  // on as many ranks
  CHECK_THAT(again.err, Contains("rank 0: ") && Contains("step 5/6") && !Contains("step 4/6"));
  whole.good("train", "--nproc 2 --set train.steps=6");
  CHECK(job.losses() == whole.losses());
  CHECK_THAT(job.refused("train", "--resume-if-any --overwrite"), Contains("--overwrite"));

  // A start that was killed before its first checkpoint.
  std::filesystem::remove_all(job.output() + "/checkpoints");
  const auto anew = job.good("train", more + "--set train.steps=6");
  CHECK_THAT(anew.err, Contains("has no complete checkpoint") && Contains("step 1/6"));
  CHECK(job.losses() == whole.losses());
}

TEST_CASE("a killed rank has the job go on from its newest checkpoint") {
  const TrainingJob job;
  Process process(job.words("train", kSteps + "--nproc 2 --max-restarts 1"), job.how());
  process.wait_for("step 5/");
  ::kill(children(process.pid()).at(1), SIGKILL);
  const auto ran = process.wait();
  INFO(ran.err);
  CHECK(ran.status == 0);
  CHECK_THAT(ran.err, Contains("rank 1 was killed by signal 9") &&
                          Contains("restart 1 of 1 from the newest checkpoint in 1 s"));
  CHECK(job.metrics().back().contains("summary"));
  check_losses(job, uninterrupted());
}

TEST_CASE("a wrong key or script is not started again") {
  const TrainingJob job;
  CHECK_THAT(job.refused("train", "--max-restarts 3 --set model.heads=5"), !Contains("restart"));
  CHECK_THAT(job.refused("train", "--nodes 3:2"), Contains("MIN:MAX"));
  CHECK_THAT(job.refused("evaluate", "--nodes 1:2"), Contains("MIN:MAX"));
  auto how = job.how();
  how.environment.insert(
      {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}});
  const auto ran = Process(job.words("train", "--max-restarts 3"), how).wait();
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains("another launcher"));
}

TEST_CASE("with one of two launchers killed the other trains on, and takes it in again") {
  const auto port = [] { return "127.0.0.1:" + std::to_string(free_port()); };
  const auto rendezvous = "--rendezvous " + port() + "," + port();
  const auto losses = uninterrupted();
  for (const int victim : {1, 0}) {  // that without and with the rendezvous
    const TrainingJob job;
    const auto start = [&](int host) {
      return std::make_unique<Process>(
          job.words("train", kSteps + "--nproc 1 --nodes 1:2 --resume-if-any --node-rank " +
                                 std::to_string(host) + " " + rendezvous),
          job.how());
    };
    std::unique_ptr<Process> hosts[2] = {start(0), start(1)};
    auto& left = *hosts[1 - victim];
    hosts[0]->wait_for("step 5/");
    CHECK(ranks_of_plan(job) == 2);
    hosts[victim]->signal(SIGKILL);
    check_alone(job, left, now());
    // The rank is held while the other host comes back, or it might be done before.
    const auto rank = rank_of(left.pid(), 3);
    ::kill(rank, SIGSTOP);
    hosts[victim]->wait();
    hosts[victim] = start(victim);
    hosts[victim]->wait_for("this host waits");
    ::kill(rank, SIGCONT);
    const auto stayed = left.wait(), came = hosts[victim]->wait();
    INFO(stayed.err << came.err);
    CHECK(stayed.status == 0);
    CHECK(came.status == 0);
    CHECK_THAT(stayed.err,
               Contains("joins; the job goes on from its newest checkpoint on 2 hosts"));
    CHECK_THAT(came.err, !Contains("step 5/"));
    CHECK(ranks_of_plan(job) == 2);
    check_losses(job, losses);
  }
}

TEST_CASE("with the cable cut one host trains on, and takes the other in once it is mended") {
  const TwoHosts hosts("", "");
  if (!hosts.ready()) return;
  const TrainingJob job;
  const auto start = [&](int host) {
    return std::make_unique<Process>(
        hosts.on(host, job.words("train", kSteps +
                                              "--nproc 1 --nodes 1:2 --resume-if-any "
                                              "--rendezvous 10.93.0.1:29521 --node-rank " +
                                              std::to_string(host))),
        job.how());
  };
  auto here = start(0), there = start(1);
  here->wait_for("step 5/");
  // The launchers' sockets and those of their ranks.
  CHECK(listening(here->pid()) == std::set<std::string>{"10.93.0.1"});
  CHECK(listening(there->pid()) == std::set<std::string>{"10.93.0.2"});
  hosts.disconnect();
  check_alone(job, *here, now());
  const auto rank = rank_of(here->pid(), 3);
  ::kill(rank, SIGSTOP);
  CHECK(there->wait().status == 1);
  hosts.connect();
  there = start(1);
  there->wait_for("this host waits");
  ::kill(rank, SIGCONT);
  const auto a = here->wait(), b = there->wait();
  INFO(a.err << b.err);
  CHECK(a.status == 0);
  CHECK(b.status == 0);
  CHECK_THAT(a.err, Contains("joins; the job goes on"));
  check_losses(job, uninterrupted());
}
