// What a strategy script prints, the explanation of the plan that it chooses, and its own problems.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/command/planning/planned_job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Contains;
using nlohmann::json;

TEST_CASE("a script's output and warnings appear once, however often its function is called") {
  const Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  // With four microbatches the graph has other shapes than at first, so the function is
  // called again.
  const auto script = folder.write("s.lua",
                                   "local m = require 'perigee.methods'\n"
                                   "print('the script runs')\n"
                                   "return function(job, graph)\n"
                                   "  print('its function runs')\n"
                                   "  return { methods = { m.parallel_mode {}, "
                                   "m.gradient_accumulation { microbatches = 4 } },\n"
                                   "    warnings = { 'the script warns' } }\nend\n");
  for (const std::string command : {"plan ", "train "}) {
    const auto output = command == "train " ? " --set train.output=" + (folder / "run") : "";
    const auto ran = run(command + job + " --nproc 2 --strategy " + script + output,
                         own_cache(folder));
    INFO(ran.err);
    REQUIRE(ran.status == 0);
    CHECK(count(ran.err, "the script runs") == 1);
    CHECK(count(ran.err, "its function runs") == 1);
    CHECK(count(ran.err, "the script warns") == 1);
  }
}

TEST_CASE("a folder hides no shipped strategy or cluster of its name") {
  const Folder folder;
  folder.write("job.toml", kPlannedJob);
  for (const auto* name : {"ddp", "8xh100"}) std::filesystem::create_directory(folder / name);
  auto how = own_cache(folder);
  how.folder = folder.path();
  const auto ran = run("plan job.toml --nproc 2 --strategy ddp --cluster 8xh100", how);
  INFO(ran.err);
  CHECK(ran.status == 0);
}

TEST_CASE("a plan that a dialect or a strategy function chose is explained like that of auto") {
  const Folder folder;
  const auto job = folder.write("job.toml", kPlannedJob);
  const auto script = folder.write("s.lua",
                                   "local solver = require 'perigee.solver'\n"
                                   "return function() return (solver.plan { pipe = 1 }) end\n");
  for (const auto& more :
       std::vector<std::string>{" --set autodist.mesh_col=2", " --strategy " + script,
                                " --set epl.auto.auto_parallel=true"}) {
    const auto ran = run("plan " + job + " --nproc 2 --explain" + more, own_cache(folder));
    INFO(more << "\n" << ran.out << ran.err);
    REQUIRE(ran.status == 0);
    CHECK_THAT(ran.out, Contains("combinations the ") && Contains("it is bound by ") &&
                            Contains("a step takes ") && Contains("longer"));
  }
}

TEST_CASE("scripts solve problems of their own") {
  Folder folder;
  const auto script = folder.write("solve.lua", R"(
local solver = require "perigee.solver"
local assigned = solver.assign {
  memory_limit = 10,
  ops = { { name = "a", options = { { time = 1, resident = 20 }, { time = 3, resident = 5 } } } },
}
local stages = solver.stages {
  layers = 2, devices = 2, microbatches = 4, submeshes = { { 1, 1 }, { 1, 2 } },
  candidates = { { first = 0, last = 0, submesh = 0, time = 2 }, { first = 1, last = 1, submesh = 0, time = 2 },
                 { first = 0, last = 1, submesh = 1, time = 2.4 } },
}
return { assigned = assigned, stages = stages }
)");
  const auto ran = run("lua " + script);
  INFO(ran.err);
  REQUIRE(ran.status == 0);
  const auto value = json::parse(ran.out);
  CHECK(value["assigned"]["status"] == "optimal");
  CHECK(value["assigned"]["choice"] == json::array({2}));
  CHECK(value["assigned"]["time"] == 3);
  CHECK(value["stages"]["choice"] == json::array({3}));
  CHECK(value["stages"]["time"] == Approx(2.4 * 4));
  // Ops count from 0, as in a file; `false` forbids a pair.
  const auto forbidden = run("lua " + folder.write("pairs.lua", R"(
return require("perigee.solver").assign {
  ops = { { name = "a", options = { { time = 1 }, { time = 2 } } }, { name = "b", options = { { time = 1 } } } },
  edges = { { from = 0, to = 1, time = { { false }, { 5 } } } },
}
)"));
  INFO(forbidden.err);
  REQUIRE(forbidden.status == 0);
  CHECK(json::parse(forbidden.out)["choice"] == json::array({2, 1}));
  CHECK(json::parse(forbidden.out)["time"] == 8);
  const auto no_job = folder.write("alone.lua",
                                   "local plan = require('perigee.solver').plan()\nreturn plan\n");
  const auto refused = run("lua " + no_job);
  CHECK(refused.status == 2);
  CHECK_THAT(refused.err, Catch::Contains("alone.lua:1"));
  CHECK_THAT(refused.err, Catch::Contains("needs the job's model"));
}
