// How many threads a rank computes with.
#include <algorithm>
#include <catch2/catch.hpp>
#include <thread>

#include "job/job.h"
#include "tests/command/job.h"

using namespace perigee::test;

TEST_CASE(
    "ranks on a CPU share the host's cores, unless the job or OMP_NUM_THREADS says otherwise") {
  const TrainingJob job;
  // Returns the threads of a rank in a run with these variables and options.
  const auto threads = [&](std::vector<std::string> environment, const std::string& options) {
    std::vector<std::string> line = {"/usr/bin/env"};
    line.insert(line.end(), environment.begin(), environment.end());
    const auto command = job.words("train", "--overwrite --set train.steps=1 " + options);
    line.insert(line.end(), command.begin(), command.end());
    const auto ran = Process(line, job.how()).wait();
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    return perigee::job::Job::load(job.output() + "/job.toml").cluster.threads;
  };
  const int64_t cores = std::max(1U, std::thread::hardware_concurrency());
  CHECK(threads({"-u", "OMP_NUM_THREADS"}, "") == cores);
  CHECK(threads({"-u", "OMP_NUM_THREADS"}, "--nproc 2") == std::max<int64_t>(1, cores / 2));
  CHECK(threads({"OMP_NUM_THREADS=3"}, "--nproc 2") == 3);
  CHECK(threads({"-u", "OMP_NUM_THREADS"}, "--set cluster.threads=5") == 5);
  CHECK(threads({"-u", "OMP_NUM_THREADS"}, "--set cluster.file=runtime/clusters/cpu.toml") == 1);
}
