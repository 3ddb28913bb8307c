// Programs of all parallelisms on simulated GPUs: the real executor, device and NCCL groups compute
// each bit of the CPU's results, without races and deadlocks, in any order of the work.
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/programs/plans.h"
#include "tests/support/torch_test.h"

namespace perigee::cuda {
namespace {

// Runs `seeds` seeds, each on one of the plans.
void run_seeds(uint64_t first, uint64_t seeds) {
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    const auto& row = rows()[seed % rows().size()];
    INFO(row.name << ", seed " << seed);
    const auto& of = compiled(row.name);
    const auto run = simulate(of, of.programs, seed);
    REQUIRE(run.finding() == "");
    REQUIRE(difference(of, run) == "");
  }
}

TEST_CASE("every plan computes the CPU's bits on GPUs in 100 orders of the work") {
  run_seeds(0, 100);
}

TEST_CASE("every plan computes the CPU's bits on GPUs in 2000 orders of the work", "[.long]") {
  run_seeds(100, 2000);
}

TEST_CASE("a seed repeats the order of the work, and another one has another order") {
  for (const char* name : {"1f1b of four", "offloaded units"}) {
    INFO(name);
    const auto& of = compiled(name);
    const auto order = simulate(of, of.programs, 3).order;
    for (int k = 0; k < 2; ++k) CHECK(simulate(of, of.programs, 3).order == order);
    CHECK(simulate(of, of.programs, 4).order != order);
  }
}

// Returns the windows and the collectives in them of a run of that row.
simulated::WindowCounts windows_of(const char* name) {
  const auto& of = compiled(name);
  REQUIRE(simulate(of, of.programs, 1).finding() == "");
  return simulated::window_counts();
}

TEST_CASE("collectives run in windows where the ranks' memory has one layout") {
  for (const char* name : {"data", "zero1", "zero2", "fsdp", "tensor, sequence", "experts",
                           "pipeline and data", "pipeline and tensor"}) {
    INFO(name);
    const auto counts = windows_of(name);
    CHECK(counts.made > 0);
    CHECK(counts.collectives > 0);
    CHECK(counts.open == 0);
  }
  // The stages of a pipeline have different layouts.
  for (const char* name : {"1f1b", "zero bubble"}) {
    INFO(name);
    CHECK(windows_of(name).made == 0);
  }
}

}  // namespace
}  // namespace perigee::cuda
