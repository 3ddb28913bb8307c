// Methods, axes and options that change nothing.
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

TEST_CASE("an event that no loss scale asks is a warning") {
  const TrainingJob job;
  const auto trained = [&](const std::string& scale) {
    const auto file = job.folder().write(
        "s.lua",
        "local m = require \"perigee.methods\"\n"
        "return { methods = { m.parallel_mode {}, m.amp_native { dtype = \"fp16\"" +
            scale + " } }, events = { loss_scale = function() return 8 end } }\n");
    return job.good("train", "--overwrite --strategy " + file).err;
  };
  CHECK_THAT(trained(""), Contains("warning: events.loss_scale is never called: "));
  CHECK_THAT(trained(", loss_scale = \"given\""), !Contains("warning: events"));
}

TEST_CASE("validation without held-out samples is a warning, or an error where it is needed") {
  const TrainingJob job;
  const std::string few = "--overwrite --set data.validation=1e-6 --set train.validate_every=1";
  const std::string said = "data.validation = 1e-06 holds out less than a global batch of ";
  CHECK_THAT(job.good("train", few).err, Contains("warning: " + said));
  CHECK_THAT(job.refused("train", few + " --set train.keep_best=true"), Contains(said));
}

TEST_CASE("an order of ranks that a run does not have is an error") {
  const TrainingJob job;
  const auto file = job.folder().write("s.lua",
                                       "return { require \"perigee.methods\".parallel_mode { { "
                                       "\"data\", 2 }, order = { 1, 2 } } }\n");
  for (const std::string command : {"train", "plan"}) {
    CHECK_THAT(job.refused(command, "--nproc 2 --strategy " + file),
               Contains("the order of the mesh holds rank 2, but there are ranks 0 to 1 only"));
  }
}

TEST_CASE("an option without an effect is a warning") {
  const TrainingJob job;
  const auto warns = [&](const std::string& command, const std::string& options,
                         const std::string& warning) {
    const auto ran = job.good(command, options);
    INFO(command << " " << options << "\n" << ran.err);
    CHECK_THAT(ran.err, Contains("warning: " + warning + "\n"));
  };
  warns("plan", "--cluster 8xh100 --nodes 2 --strategy ddp",
        "--nodes 2 without --nproc means one rank on each node: give --nproc, the ranks of a node");
  const auto secret = job.folder().write("secret", "a long secret of the job\n");
  for (const std::string command : {"plan", "simulate", "graph"}) {
    for (const auto& [option, value] :
         {std::pair<std::string, std::string>("--rendezvous", "127.0.0.1:9"),
          {"--node-rank", "0"},
          {"--interface", "lo"},
          {"--secret-file", secret}}) {
      warns(command, option + " " + value,
            option + " has no effect: perigee " + command + " starts no ranks");
    }
  }
  warns("graph", "--cluster 8xh100", "--cluster has no effect on the captured graph");
  const auto plan = job.folder() / "plan.json";
  job.good("plan", "--strategy ddp -o " + plan);
  warns("simulate", "--plan " + plan + " --strategy zero1",
        "--strategy zero1 has no effect beside the plan " + plan);
}
