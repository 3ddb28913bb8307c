// Strategy functions that make their own mesh: the number of ranks follows from the plan.

#include <catch2/catch.hpp>
#include <fstream>
#include <thread>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

// Returns the path of a script whose function makes the mesh, a Lua expression of axes.
std::string script_with(const TrainingJob& job, const std::string& mesh) {
  return job.folder().write("s.lua",
                            "local m = require 'perigee.methods'\n"
                            "return function(job, graph)\n"
                            "  print('the function runs')\n"
                            "  return { m.parallel_mode { " +
                                mesh + " } }\nend\n");
}

}  // namespace

TEST_CASE("a strategy function that makes its own mesh gets as many ranks as the mesh has") {
  const TrainingJob job;
  const auto script = script_with(job, "{ 'data', 2 }");
  const auto ran = job.good("train", "--strategy " + script);
  CHECK_THAT(ran.err, Contains(", 2 ranks, "));
  CHECK(count(ran.err, "the function runs") == 1);
  CHECK(job.metrics().front()["peak_bytes"].size() == 2);
  const auto losses = job.losses();
  CHECK_THAT(job.good("evaluate", "--strategy " + script).out, Contains("\"val_loss\""));

  job.good("train", "--overwrite --nproc 2 --strategy " + script);
  check_losses(job, losses);
  // A number that is given decides.
  CHECK_THAT(job.good("train", "--overwrite --nproc 4 --strategy " + script).err,
             Contains(", 4 ranks, "));

  SECTION("ranks may be threads") {
    const auto threads = job.good("train",
                                  "--overwrite --set cluster.in_process=true --strategy " + script);
    CHECK_THAT(threads.err, Contains(", 2 ranks, "));
  }
}

TEST_CASE("a strategy function that leaves the mesh open has one rank on a CPU") {
  const TrainingJob job;
  const auto ran = job.good("train", "--strategy " + script_with(job, ""));
  CHECK_THAT(ran.err, Contains(", 1 rank, "));
}

TEST_CASE(
    "a strategy function takes the host's devices where its mesh allows, else its own number") {
  const TrainingJob job;
  const std::string three = "--set batch.global=6 --set cluster.devices=\"0,1,2\" --strategy ";
  CHECK_THAT(job.good("train", three + script_with(job, "")).err, Contains(", 3 ranks, "));
  CHECK_THAT(job.good("train", "--overwrite " + three + script_with(job, "{ 'tensor', 2 }")).err,
             Contains(", 2 ranks, "));
}

TEST_CASE("every dialect without sizes has a rank for each device of the host") {
  for (const std::string table :
       {"[megatron]\n", "[epl]\n", "[atorch]\nload_strategy = [\"parallel_mode\"]\n",
        "[alpa.DataParallel]\n", "[alpa.Zero2Parallel]\n", "[alpa.Zero3Parallel]\n",
        "[autodist]\n"}) {
    INFO(table);
    const TrainingJob job;
    std::ofstream(job.file(), std::ios::app) << table;
    const auto plan = job.folder() / "plan.json";
    job.good("plan", "--set batch.global=6 --set cluster.devices=\"0,1,2\" -o " + plan);
    CHECK(nlohmann::json::parse(read(plan))["mesh"]["axes"] ==
          nlohmann::json::parse(R"([{"name": "data", "size": 3}])"));
  }
}

TEST_CASE("a strategy function that fails says so once, before a run begins") {
  const TrainingJob job;
  const auto error = job.refused("train",
                                 "--strategy " + script_with(job, "{ 'data', job.no.key }"));
  CHECK(count(error, "s.lua:4") == 1);
  CHECK(count(error, "the function runs") == 1);
}

TEST_CASE("a mesh that needs more ranks than the host can run is refused with the remedy") {
  const TrainingJob job;
  const auto most = 16 * std::max(1U, std::thread::hardware_concurrency());
  const auto ranks = std::to_string(2 * most);
  // Of a function, of a list of methods, and of a plan.
  const auto function = script_with(job, "{ 'data', " + ranks + " }");
  const auto list = job.folder().write("list.lua",
                                       "return {{'parallel_mode', {{'data', " + ranks + "}}}}\n");
  const auto plan = job.folder() / "plan.json";
  job.good("plan", "--set batch.global=" + ranks + " --strategy " + list + " -o " + plan);
  for (const auto& strategy : {"--strategy " + function, "--strategy " + list, "--plan " + plan}) {
    const auto error = job.refused("train", "--set batch.global=" + ranks + " " + strategy);
    CHECK_THAT(error, Contains("mesh has " + ranks + " ranks") &&
                          Contains("for up to " + std::to_string(most) + " ranks") &&
                          Contains("--nproc " + ranks) && Contains("--nodes"));
    CHECK_FALSE(std::filesystem::exists(job.output()));
  }
}
