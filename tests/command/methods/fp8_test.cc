// fp8 with native products: planned for devices that have them, refused for others.
#include <catch2/catch.hpp>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Contains;

TEST_CASE("chunked_loss beside fp8 or tokens on several axes names the methods and the remedy") {
  const TrainingJob job;
  const auto with = [&](const std::string& methods) {
    return "--strategy " + job.folder().write("chunked.lua",
                                              "local m = require \"perigee.methods\"\n"
                                              "return { " +
                                                  methods + ", m.chunked_loss {} }\n");
  };
  CHECK_THAT(job.refused("plan", with("m.fp8 {}")),
             Contains("leave chunked_loss out, or name the layers of fp8 without it (match = "));
  job.good("plan", with("m.fp8 { match = \"blocks.*\" }"));
  CHECK_THAT(
      job.refused("plan", with("m.parallel_mode { { \"sequence\", 2 }, { \"context\", 2 }, { "
                               "\"tensor\", 2 } }, m.tensor_parallel { sequence = true }, "
                               "m.sequence_parallel {}, m.context_parallel {}") +
                              " --set model.heads=4 --set data.sequence=16"),
      Contains("leave chunked_loss out, or one of sequence_parallel, context_parallel and "
               "tensor_parallel's sequence"));
}

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
