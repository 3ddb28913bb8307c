// The method lora through the command: training, evaluation, samples, exports and their errors.
#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

const std::string kStrategy = R"(local m = require "perigee.methods"
return { m.parallel_mode { { "data", 2 } }, m.fsdp {},
         m.lora { match = { "qkv", "down" }, rank = 2, alpha = 4, dropout = 0.1 } })";

}  // namespace

TEST_CASE("a run with adapters is resumed, evaluated, sampled and exported") {
  const TrainingJob job;
  const auto strategy = job.folder().write("lora.lua", kStrategy);
  const auto out = job.output();
  const std::string options =
      "--nproc 2 --set train.checkpoint_every=2 --set optimizer.lr=1e-2 "
      "--set data.validation=0.2 ";
  const auto trained = job.good("train", options + "--strategy " + strategy);
  CHECK_THAT(json::parse(read(out + "/plan.json")).at("adapters").dump(), Contains("qkv.weight"));
  const auto losses = job.losses();
  const auto weights = job.weights();

  // A run that stops after two steps and goes on by its own plan.
  fs::remove_all(out);
  job.good("train", options + "--set train.steps=2 --strategy " + strategy);
  job.good("train", options + "--resume");
  CHECK(job.losses() == losses);
  CHECK(job.weights() == weights);

  CHECK(json::parse(job.good("evaluate", options + "--strategy " + strategy).out)
            .contains("val_loss"));
  CHECK_THAT(job.refused("evaluate", options),
             Contains("has adapters (") && Contains("add the method lora to the strategy"));
  auto scaled = kStrategy;
  scaled.replace(scaled.find("alpha = 4"), 9, "alpha = 6");
  const auto other = job.folder().write("other.lua", scaled);
  for (const char* command : {"evaluate", "train"}) {
    const bool trains = command == std::string("train");
    CHECK_THAT(job.refused(command, options + (trains ? "--resume --set train.steps=6 " : "") +
                                        "--strategy " + other),
               Contains("keep the scale that they were trained with, 2 (alpha = 4, rank = 2), but "
                        "the strategy has 3 (alpha = 6, rank = 2)"));
  }
  CHECK_FALSE(job.good("sample", "--tokens 4").out.empty());

  const auto merged = run("export " + out + " -o " + (job.folder() / "merged.safetensors"),
                          job.how());
  CHECK(merged.status == 0);
  CHECK_THAT(merged.err, Contains("the adapters of 4 weights are merged into them, as W + 2 B A"));
  const auto adapter = job.folder() / "adapter";
  CHECK(run("export " + out + " --adapter " + adapter, job.how()).status == 0);
  const auto config = json::parse(read(adapter + "/adapter_config.json"));
  CHECK(config["target_modules"] == json{"down", "qkv"});
  CHECK(config["lora_alpha"] == 4);

  // The exported adapter is where another run begins, on another mesh.
  const auto one = job.folder().write("one.lua", R"(local m = require "perigee.methods"
return { m.lora { match = { "qkv", "down" }, rank = 2, alpha = 4 } })");
  const auto again = job.good("train",
                              "--overwrite --strategy " + one + " --set train.adapter=" + adapter);
  CHECK_THAT(again.err, Contains("8 of 8 tensors of adapters loaded from " + adapter));
  CHECK_THAT(job.refused("train", "--overwrite --set train.adapter=" + adapter),
             Contains("add the method lora to the strategy"));
  CHECK_THAT(job.refused("train", "--overwrite --set train.adapter=" + adapter + "x"),
             Contains("train.adapter names a file, but there is no"));
}

TEST_CASE("plans with adapters are explained, simulated and checked") {
  const TrainingJob job;
  const auto strategy = job.folder().write("lora.lua", kStrategy);
  const auto plan = job.good("plan", "--nproc 2 --explain --strategy " + strategy);
  CHECK_THAT(plan.out, Contains("lora: 4 weights (blocks.0.attn.qkv.weight, ...) have adapters of "
                                "rank 2 with scale 2 and dropout 0.1"));
  job.good("simulate", "--nproc 2 --strategy " + strategy);
  const auto file = job.folder() / "plan.json";
  job.good("plan", "--nproc 2 -o " + file + " --strategy " + strategy);
  job.good("train", "--nproc 2 --plan " + file + " --set train.steps=1");
  // The search with the method pinned.
  const auto searched = job.folder().write("searched.lua",
                                           R"(local solver = require "perigee.solver"
return function()
  return assert(solver.plan { methods = { { "lora", { match = { "qkv", "down" }, rank = 2 } } } })
end)");
  CHECK_THAT(job.good("plan", "--nproc 2 --explain --strategy " + searched).out,
             Contains("have adapters of rank 2"));
}

TEST_CASE("adapters that cannot be are one error, and nothing is written") {
  const TrainingJob job;
  const auto refused = [&](const std::string& config) {
    const auto strategy = job.folder().write(
        "bad.lua", "local m = require \"perigee.methods\"\nreturn { m.lora " + config + " }\n");
    const auto error = job.refused("train", "--strategy " + strategy);
    CHECK_FALSE(fs::exists(job.output()));
    return error;
  };
  CHECK_THAT(refused("{ match = \"qvk\" }"),
             Contains("bad.lua:2") && Contains("\"qvk\" matches no module, did you mean \"qkv\"?"));
  CHECK_THAT(refused("{ match = \"embed\" }"),
             Contains("matches embed.weight, which is read by aten::embedding"));
  CHECK_THAT(refused("{ match = \"norm1\" }"), Contains("has 1 dim"));
  job.good("train");
  CHECK_THAT(run("export " + job.output() + " --adapter " + (job.folder() / "none"), job.how()).err,
             Contains("--adapter writes the adapters of the method lora, but"));
}
