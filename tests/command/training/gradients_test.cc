// train --check-gradients: one step by the strategy and on one device.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

TEST_CASE("the gradients of a strategy are compared with those of one device") {
  const TrainingJob job;
  for (const std::string more :
       {"--nproc 2", "--nproc 4 --strategy tensor_parallel",
        "--nproc 4 --strategy pipeline_parallel", "--nproc 2 --strategy fsdp_low_memory",
        "--nproc 4 --strategy hsdp_context --set model.dropout=0.1",
        "--nproc 2 --set model.dtype=float64"}) {
    INFO(more);
    const auto ran = job.good("train", "--check-gradients " + more);
    CHECK_THAT(ran.out, Contains("blocks.1.norm2.weight") && Contains("gradients agree to"));
  }
  CHECK(!std::filesystem::exists(job.output()));  // nothing was trained
  CHECK_THAT(job.refused("train", "--check-gradients=0 --nproc 2"), Contains("tolerance"));
  CHECK_THAT(job.refused("train", "--check-gradients --nproc 2 --strategy local_sgd"),
             Contains("copies"));
  // With a tolerance of zero, differences of rounding are errors.
  const auto strict = job("train", "--check-gradients=1e-30 --nproc 2");
  CHECK(strict.status == 1);
  CHECK_THAT(strict.out, Contains("differ by more than 1e-30"));
}

TEST_CASE("recomputed blocks give bit-equal gradients") {
  const TrainingJob job;
  const auto kept = "without activation checkpointing all";
  for (const std::string more : {"--nproc 2 --strategy checkpoint --set model.dropout=0.1",
                                 "--nproc 2 --strategy checkpoint_kept",
                                 "--nproc 2 --set model.dtype=bfloat16 --strategy checkpoint"}) {
    INFO(more);
    CHECK_THAT(job.good("train", "--check-gradients " + more).out,
               Contains(kept) && Contains("are bit-equal"));
  }
  CHECK_THAT(job.good("train", "--check-gradients --nproc 2").out, !Contains(kept));
  // Everything fits in a device's memory: nothing is recomputed.
  const auto fits = job.folder().write(
      "fits.lua", "return { { 'checkpoint', { 'blocks.*', memory = 'device' } } }");
  CHECK_THAT(job.good("train", "--check-gradients --nproc 2 --strategy " + fits).out,
             !Contains(kept));
  const auto tight = job.folder().write(
      "tight.lua", "\nreturn { { 'checkpoint', { 'blocks.*', memory = 1000 } } }");
  CHECK_THAT(job.refused("train", "--check-gradients --nproc 2 --strategy " + tight),
             Contains("tight.lua:2: [checkpoint] no rank may need more than 1000 bytes"));
  CHECK_THAT(job.good("train",
                      "--nproc 2 --set train.check_gradients=true --set "
                      "epl.gradient_checkpoint.type=auto")
                 .err,
             Contains("agree with one device's"));
}

TEST_CASE("assert_allclose compares elements within its tolerances") {
  const TrainingJob job;
  const auto with = [&](const std::string& tolerances) {
    return "--nproc 2 --strategy " +
           job.folder().write("close.lua",
                              "local alpa = require 'perigee.alpa'\n"
                              "local step = alpa.parallelize(alpa.Zero2Parallel { "
                              "num_micro_batches = 2 })\n"
                              "alpa.assert_allclose(1, step" +
                                  tolerances + ")\nreturn step\n");
  };
  CHECK_THAT(job.good("train", with("")).err, Contains("agree with one device's to 0.001"));
  CHECK_THAT(job.good("train", "--overwrite " + with(", { atol = 5e-3 }")).err,
             Contains("agree with one device's to 0.005 + 0.0001 |x|"));
  CHECK_THAT(job.refused("train", "--overwrite " + with(", { atol = 1e-12, rtol = 1e-12 }"), 1),
             Contains("must be those of one device to 1e-12 + 1e-12 |x|, but ") &&
                 Contains(" times what it may"));
  CHECK_THAT(job.refused("train", "--set train.check_atol=1e-3"),
             Contains("tolerances of train.check_gradients, but that is false"));
}

TEST_CASE("with tolerances of elements the parameters after the first step are compared, too") {
  const TrainingJob job;
  const std::string exact =
      "--overwrite --set model.dtype=float64 --set train.steps=1 --set train.check_gradients=true "
      "--set train.check_rtol=1e-9 --set train.check_atol=1e-9 ";
  for (const std::string more :
       {"--nproc 2 --strategy zero1", "--nproc 2 --strategy fsdp_low_memory",
        "--nproc 4 --strategy pipeline_parallel", "--nproc 4 --strategy tensor_parallel"}) {
    INFO(more);
    CHECK_THAT(job.good("train", exact + more).err,
               Contains(", and the parameters after the first step, agree with one device's"));
  }
  // Gradients that are clipped before they are averaged are those of one device only unclipped.
  const auto clips = job.folder().write("clips.lua",
                                        "return { { 'grad_comm', { clip = 'before' } } }");
  const std::string sgd =
      "--nproc 2 --set optimizer.name=sgd --set optimizer.lr=1 --set "
      "optimizer.clip_norm=0.01 ";
  job.good("train", exact + sgd);
  CHECK_THAT(job.refused("train", exact + sgd + "--strategy " + clips, 1),
             Contains("the elements of the parameters after the first step must be those of one "
                      "device"));
}

TEST_CASE("a wrong sharding rule is detected, and its parameters are named") {
  const TrainingJob job;
  // The rule treats the activation as linear in the sum of ranks' parts.
  const std::string strategy = R"lua(
local m = require "perigee.methods"
local split = m.define {
  name = "split",
  apply = function(plan)
    plan:place("blocks.0.*", "tensor", "S0")
    plan:place("blocks.1.weight", "tensor", "S1")
  end,
}
return { m.parallel_mode { { "tensor", 2 } }, split {} }
)lua";
  const std::string rule =
      "require(\"perigee.shard\").rule(\"aten::relu\", \"a* -> a*; linear(0)\")\n";
  const auto mlp = job.folder().write(
      "mlp.toml",
      "[model]\nkind = \"mlp\"\ninputs = 8\nwidth = 16\nlayers = 3\noutputs = 4\n"
      "[data]\nsynthetic = true\n[batch]\nglobal = 8\n[train]\nsteps = 1\n"
      "[cluster]\ndevice = \"cpu\"\n");
  const auto check = [&](const std::string& script) {
    return run(
        "train " + mlp + " --check-gradients --strategy " + job.folder().write("split.lua", script),
        job.how());
  };
  const auto wrong = check(rule + strategy);
  INFO(wrong.out << wrong.err);
  CHECK(wrong.status == 1);
  CHECK_THAT(wrong.out,
             Contains("head.weight") && Contains("WRONG") && Contains("differ by more than"));
  CHECK(check(strategy).status == 0);
}
