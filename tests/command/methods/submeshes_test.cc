// Stages of unequal submeshes, over real processes.
#include <catch2/catch.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

const std::string kSame =
    "--set model.dtype=float64 --set model.dropout=0.1 --set batch.global=8 "
    "--set train.validate_every=2 ";

void check_equal(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i] == Approx(b[i]).epsilon(1e-10));
}

std::vector<double> validations(const TrainingJob& job) {
  std::vector<double> found;
  for (const auto& line : job.metrics()) {
    if (line.contains("val_loss")) found.push_back(line["val_loss"]);
  }
  return found;
}

std::string strategy_of(const TrainingJob& job, const std::string& submeshes,
                        const std::string& more = "") {
  return job.folder().write("stages.lua",
                            "local m = require \"perigee.methods\"\n"
                            "return {\n  m.parallel_mode { submeshes = " +
                                submeshes +
                                " },\n  m.pipeline_parallel {},\n"
                                "  m.gradient_accumulation { microbatches = 4 },\n" +
                                more + "}\n");
}

}  // namespace

TEST_CASE("three processes train stages of two and one ranks as one device does") {
  const TrainingJob one, job;
  one.good("train", kSame);
  const auto strategy = strategy_of(job, "{ { { \"data\", 2 } }, {} }", "  m.zero1 {},\n");
  job.good("train", kSame + "--strategy " + strategy);
  check_equal(job.losses(), one.losses());
  check_equal(validations(job), validations(one));
  const auto summary = job.metrics().back()["summary"];
  CHECK(summary["peak_bytes"].size() == 2);  // of each stage
  CHECK(summary["peak_bytes"][0] != summary["peak_bytes"][1]);
  CHECK(summary["peak_bytes"] == summary["predicted_peak_bytes"]);
  const auto told = job.good("plan", kSame + "--explain --strategy " + strategy);
  CHECK_THAT(told.out + told.err, Contains("stage 0 has 2 ranks (0, 1) as data=2") &&
                                      Contains("stage 1 has 1 rank (2)"));
  CHECK_THAT(job.refused("plan", kSame + "--nproc 4 --strategy " + strategy),
             Contains("submeshes have fixed sizes"));
}

TEST_CASE("unequal stages and one device read each other's checkpoints") {
  const TrainingJob one, job;
  const auto steps = [](int n) { return " --set train.steps=" + std::to_string(n) + " "; };
  const auto split = strategy_of(job, "{ { { \"data\", 2 } }, { { \"tensor\", 2 } } }",
                                 "  m.tensor_parallel {},\n  m.fsdp {},\n");
  one.good("train", kSame + steps(6));
  job.good("train", kSame + steps(2) + "--strategy " + split);
  job.good("train", kSame + steps(4) + "--resume --nproc 1");
  job.good("train", kSame + steps(6) + "--resume --strategy " + split);
  check_equal(job.losses(), one.losses());
}

TEST_CASE("a plan found for three ranks trains as one device does") {
  const TrainingJob one, job;
  one.good("train", kSame);
  const auto script = job.folder().write(
      "search.lua",
      "local solver = require \"perigee.solver\"\n"
      "return function() return (assert(solver.plan { pipe = 2 })) end\n");
  const auto told = job.good("plan", kSame + "--nproc 3 --explain --strategy " + script);
  CHECK_THAT(told.out + told.err, Contains("has 1 rank ") && Contains("has 2 ranks "));
  job.good("train", kSame + "--nproc 3 --strategy " + script);
  check_equal(job.losses(), one.losses());
  check_equal(validations(job), validations(one));
}

TEST_CASE("taskgraphs and stages of several sizes of other systems train as one device does") {
  const TrainingJob one, job;
  one.good("train", kSame);
  const auto train = [&](const std::string& text) {
    const auto script = job.folder().write("other.lua", text);
    job.good("train", kSame + "--overwrite --nproc 3 --strategy " + script);
    check_equal(job.losses(), one.losses());
    check_equal(validations(job), validations(one));
  };
  train(
      "local epl = require \"perigee.epl\"\n"
      "epl.init(epl.Config { [\"pipeline.num_micro_batch\"] = 4 })\n"
      "epl.replicate { device_count = 1, \"embed\", \"blocks.0\" }\n"
      "epl.replicate { device_count = 2, \"blocks.1\", \"norm\" }\n"
      "return epl.strategy()\n");
  train(
      "local alpa = require \"perigee.alpa\"\n"
      "alpa.init { num_nodes = 1, num_devices_per_node = 3 }\n"
      "alpa.mark_pipeline_boundary { \"blocks.1\" }\n"
      "return alpa.parallelize { method = alpa.PipeshardParallel { num_micro_batches = 2,\n"
      "  layer_option = \"manual\", stage_option = alpa.ManualStageOption {\n"
      "    forward_stage_layer_ids = { { 0 }, { 1 } },\n"
      "    submesh_physical_shapes = { { 1, 2 }, { 1, 1 } },\n"
      "    submesh_logical_shapes = { { 1, 2 }, { 1, 1 } } } } }\n");
}
