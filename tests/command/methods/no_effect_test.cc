// Methods and axes of a strategy that change nothing.
#include <catch2/catch.hpp>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Contains;

namespace {

// Checks that train and plan warn of this once, and of nothing else.
void check_warning(const TrainingJob& job, const std::string& methods, const std::string& warning,
                   const std::string& more = "") {
  const auto file = job.folder().write("s.lua",
                                       "local m = require \"perigee.methods\"\n"
                                       "return { " +
                                           methods + " }\n");
  const auto options = "--strategy " + file + more;
  for (const std::string command : {"plan", "train"}) {
    const auto ran = job.good(command, command == "train" ? options + " --overwrite" : options);
    INFO(command << "\n" << ran.err);
    CHECK_THAT(ran.err, Contains("warning: " + warning + "\n"));
    CHECK(count(ran.err, "warning: ") == 1);
  }
}

}  // namespace

TEST_CASE("an axis that no method uses is a warning") {
  check_warning(
      TrainingJob(), "m.parallel_mode { { \"tensor\", 2 } }",
      "parallel_mode: no method shards over axis tensor: its 2 ranks repeat the same work: "
      "add the method that uses it, or leave it out");
}

TEST_CASE("a precision without an effect is a warning") {
  const TrainingJob job;
  const auto types = [&](const std::string& methods, const std::string& warning,
                         const std::string& dtype) {
    check_warning(job, methods, warning, " --set model.dtype=" + dtype);
  };
  const std::string amp = "m.amp_native { dtype = \"bf16\" }", half = "m.half { dtype = \"bf16\" }";
  types(half + ", " + amp, "amp_native: has no effect besides half", "float32");
  types(amp + ", " + half, "amp_native: has no effect besides half", "float32");
  types(amp, "amp_native: has no effect: no op of the model is float32", "float64");
  types(half, "half: has no effect: no parameter of the model is float32", "float64");
}
