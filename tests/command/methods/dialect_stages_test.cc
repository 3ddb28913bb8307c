// Stages of dialects through the command, with shardings or recomputation of their own.
#include "plan/plan.h"
#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee;
using namespace perigee::test;

TEST_CASE("stages that are sharded or recomputed by a dialect train as one device does") {
  const TrainingJob job;
  const std::string same = "--set model.dtype=float64 --set model.dropout=0.1 --overwrite ";
  job.good("train", same);
  const auto losses = job.losses();
  // EPL: a recomputed region from the first stage's start into the second stage.
  const auto crossing = job.folder().write(
      "crossing.lua",
      "local epl = require 'perigee.epl'\n"
      "epl.init(epl.Config { ['gradient_checkpoint.type'] = 'collection', "
      "['pipeline.num_micro_batch'] = 2 })\n"
      "epl.replicate { device_count = 1, 'embed', 'blocks.0' }\n"
      "epl.replicate { device_count = 1, 'blocks.1', 'norm' }\n"
      "epl.checkpoints { 'blocks.1' }\n"
      "return epl.strategy()\n");
  // Alpa: stages without shapes of microbatches of one and two samples, and one stage.
  const std::string narrow =
      "--set alpa.num_micro_batches=8 --set alpa.layer_option=manual --set "
      "alpa.marks.scopes=[\"blocks.1\"]";
  for (const std::string& more : {"--nproc 2 --strategy " + crossing, "--nproc 4 " + narrow,
                                  std::string("--nproc 4 --strategy alpa_manual"),
                                  std::string("--nproc 2 --set alpa.num_micro_batches=2 --set "
                                              "alpa.UniformStageOption.num_stages=1")}) {
    INFO(more);
    job.good("train", same + more);
    const auto others = job.losses();
    REQUIRE(others.size() == losses.size());
    for (size_t i = 0; i < losses.size(); ++i) CHECK(others[i] == Approx(losses[i]).epsilon(1e-10));
  }
  const auto plan = plan::parse(
      job.good("plan", same.substr(0, same.find("--over")) + "--nproc 4 " + narrow).out);
  CHECK(plan.mesh.size_of("tensor") == 2);
  CHECK_FALSE(plan.placements.empty());
  // The comparison can fail: another seed gives another model.
  job.good("train", same + "--set seed=7 --nproc 4 " + narrow);
  CHECK(job.losses()[0] != Approx(losses[0]).epsilon(1e-6));
}
