// What a strategy script prints, and the explanation of the plan that it chooses.
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/command/planning/planned_job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Contains;

namespace {}  // namespace

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
