// fp8 with native products: planned for devices that have them, refused for others.
#include <catch2/catch.hpp>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Contains;

TEST_CASE("a plan uses eight-bit products where the cluster's devices have them") {
  const TrainingJob job;
  const std::string native = "the device multiplies them itself";
  const auto plan = [&](const std::string& more) {
    return job.good("plan", "--strategy fp8 " + more).out;
  };
  CHECK_THAT(plan("--explain --cluster 8xh100"), Contains(native));
  CHECK_THAT(plan("--explain --cluster 8xa100"), !Contains(native));
  CHECK_THAT(plan("--explain"), !Contains(native));
  // A rank whose device has none reports only that.
  const auto file = job.folder().write("plan.json", plan("--cluster 8xh100"));
  CHECK_THAT(job.refused("train", "--plan " + file),
             Contains("multiply eight-bit floats itself") && Contains("\"emulated\""));
  const auto strategy = job.folder().write(
      "native.lua",
      "local m = require \"perigee.methods\"\n"
      "return { m.parallel_mode {}, m.fp8 { product = \"native\" } }\n");
  CHECK_THAT(job.refused("train", "--strategy " + strategy),
             Contains("needs devices that multiply eight-bit floats"));
}
