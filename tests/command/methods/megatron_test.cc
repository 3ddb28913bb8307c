// Trains scripts of Megatron-Core's and EPL's users over several ranks.
#include <catch2/catch.hpp>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

const std::string kSame = "--overwrite --set model.dtype=float64 ";

// Returns whether two runs have the same losses to that tolerance.
bool same(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] != Approx(b[i]).epsilon(tolerance)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("instances of Megatron's distributed optimizer train as one device does") {
  const TrainingJob job;
  job.good("train", kSame);
  const auto one = job.losses();
  const std::string instances =
      "--set megatron.DistributedOptimizer.num_distributed_optimizer_instances=2 ";
  for (const std::string more :
       {"--nproc 4 ", "--nproc 2 ", "--nproc 8 --set megatron.tensor_model_parallel_size=2 "}) {
    INFO(more);
    job.good("train", kSame + instances + more);
    CHECK(same(job.losses(), one, 1e-10));
  }
  CHECK_THAT(job.refused("train", kSame + instances + "--nproc 3"),
             Contains("axes must multiply to the 3 ranks of this run"));
}

TEST_CASE("Megatron's stages cast sent values, and otherwise train as one device does") {
  const TrainingJob job;
  job.good("train", kSame);
  const auto one = job.losses();
  const auto staged = [&](const std::string& dtype, const std::string& more) {
    job.good("train", kSame +
                          "--nproc 2 --set megatron.pipeline_model_parallel_size=2 "
                          "--set megatron.params_dtype=float64 --set megatron.pipeline_dtype=" +
                          dtype + " " + more);
    return job.losses();
  };
  CHECK(same(staged("float64", ""), one, 1e-10));
  CHECK(same(staged("float64", "--set megatron.pipeline_model_parallel_comm_backend=gloo"), one,
             1e-10));
  const auto cast = staged("float32", "");
  CHECK(same(cast, one, 1e-5));
  CHECK_FALSE(same(cast, one, 1e-12));
  CHECK_FALSE(same(staged("bf16", ""), cast, 1e-8));
}

TEST_CASE("Megatron's collectives wait at once without bulk overlap, with the same losses") {
  const TrainingJob job;
  job.good("train", kSame);
  const auto one = job.losses();
  const std::string tensor =
      "--nproc 2 --set megatron.tensor_model_parallel_size=2 --set megatron.sequence_parallel=true "
      "--set megatron.tp_comm_overlap=true ";
  for (const std::string more :
       {"--set megatron.tp_comm_bulk_wgrad=false ", "--set megatron.tp_comm_bulk_dgrad=false "}) {
    job.good("train", kSame + tensor + more);
    CHECK(same(job.losses(), one, 1e-10));
  }
}

TEST_CASE("EPL's replicas and splits on devices of their own train as one device does") {
  const TrainingJob job("kind = \"gpt\"\nlayers = 2\nwidth = 32\nheads = 2\ntied = false\n");
  job.good("train", kSame);
  const auto one = job.losses();
  const auto script = [&](const std::string& scopes) {
    return "--strategy " + job.folder().write("epl.lua",
                                              "local epl = require 'perigee.epl'\n"
                                              "epl.init(epl.Config { ['pipeline.num_micro_batch'] "
                                              "= 2 })\n" +
                                                  scopes + "\nreturn epl.strategy()\n");
  };
  const auto own = script(
      "epl.replicate { device_count = 2, 'embed', 'blocks.*' }\n"
      "epl.split { device_count = 2, 'head' }");
  for (const std::string ranks : {"--nproc 4 ", "--nproc 8 "}) {
    INFO(ranks);
    job.good("train", kSame + ranks + own);
    CHECK(same(job.losses(), one, 1e-10));
  }
  job.good("train", kSame + "--nproc 4 " +
                        script("epl.split { device_count = 2, 'blocks.0.mlp.up' }\n"
                               "epl.split { device_count = 2, 'head' }"));
  CHECK(same(job.losses(), one, 1e-10));
}
