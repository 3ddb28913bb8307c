// Models written in Lua, trained as a user trains them.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/job.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

// The model section of a job.
std::string model(const std::string& path) {
  return "kind = \"lua\"\ndtype = \"float64\"\nfile = \"" +
         std::filesystem::absolute(path).string() + "\"\n";
}

}  // namespace

TEST_CASE("an encoder-decoder in Lua trains the same on any number of ranks") {
  const TrainingJob job(model("runtime/models/transformer.lua") +
                        "[model.options]\nlayers = 2\nwidth = 16\nhidden = 32\ndropout = 0.1\n");
  const std::string same =
      "--set data.text=[] --set data.synthetic=true --set data.sequence=8 --overwrite ";
  job.good("train", same);
  const auto losses = job.losses();
  REQUIRE(losses.size() == 4);
  for (const std::string more :
       {"--nproc 2 --strategy ddp", "--nproc 2 --set batch.micro=1", "--nproc 2 --strategy fsdp",
        "--nproc 4 --strategy pipeline_parallel", "--nproc 4 --strategy transformer"}) {
    INFO(more);
    job.good("train", same + more);
    check_losses(job, losses);
  }
  // The pivots of AutoDist's own document.
  const auto pivots = job.folder().write(
      "pivots.lua",
      "local m = require 'perigee.autodist'\nreturn m.AutoDistConfig { pipeline_pivots = "
      "'encoder,decoder', pipeline_nstages = 2, mesh_col = 2, max_pipeline_unbalance_ratio = 0.1 "
      "}");
  job.good("train", same + "--strategy " + pivots);
  check_losses(job, losses);
  const auto plan = nlohmann::json::parse(read(job.output() + "/plan.json"));
  CHECK(plan["pipeline"]["starts"] == nlohmann::json{"decoder"});
  // The comparison can fail: another option gives another model.
  job.good("train", same + "--set model.options.heads=2");
  CHECK(job.losses()[0] != Approx(losses[0]).epsilon(1e-6));
}

TEST_CASE("a vision tower beside a text tower trains in stages as on one device") {
  const Folder folder;
  const auto script = folder.write(
      "towers.lua",
      "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
      "local Block, Tower, Net = nn.Module 'Block', nn.Module 'Tower', nn.Module 'Net'\n"
      "function Block:init() self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16) end\n"
      "function Block:forward(x) return x + self.down(torch.gelu(self.up(x))) end\n"
      "function Tower:init(stem)\n"
      "  self.stem, self.blocks = stem, nn.ModuleList { Block(), Block() }\n"
      "end\n"
      "function Tower:forward(x)\n"
      "  x = self.stem(x)\n"
      "  for _, block in self.blocks:each() do x = block(x) end\n"
      "  return x:mean(1)\n"
      "end\n"
      "function Net:init()\n"
      "  self.vision, self.text = Tower(nn.Linear(12, 16)), Tower(nn.Embedding(32, 16))\n"
      "  self.join, self.head = Block(), nn.Linear(16, 8)\n"
      "end\n"
      "return {\n"
      "  batch = { image = { shape = { 4, 12 } }, tokens = { shape = { 6 }, classes = 32 },\n"
      "    labels = { shape = {}, classes = 8 } },\n"
      "  model = function() return Net() end,\n"
      "  forward = function(net, batch)\n"
      "    local joined = net.join(net.vision(batch.image) + net.text(batch.tokens))\n"
      "    return { loss = torch.cross_entropy_loss(net.head(joined), batch.labels) }\n"
      "  end,\n}\n");
  const TrainingJob job(model(script));
  const std::string same = "--set data.text=[] --set data.synthetic=true --overwrite ";
  job.good("train", same);
  const auto losses = job.losses();
  REQUIRE(losses.size() == 4);
  const auto trained = [&](int ranks, const std::string& strategy) {
    INFO(strategy);
    job.good("train", same + "--nproc " + std::to_string(ranks) + " --strategy " +
                          folder.write("s.lua", strategy));
    check_losses(job, losses);
    return nlohmann::json::parse(read(job.output() + "/plan.json"))["pipeline"]["starts"];
  };
  const auto staged = [&](int stages, const std::string& starts) {
    return trained(stages, "return { { 'parallel_mode', { { 'pipe', " + std::to_string(stages) +
                               " } } }, { 'pipeline_parallel', { starts = { " + starts +
                               " } } }, { 'gradient_accumulation', { microbatches = 4 } } }\n");
  };
  // Between the towers, within each, and at the module that joins them.
  for (const std::string starts : {"'text'", "'text.blocks.1'"}) staged(2, starts);
  staged(3, "'vision.blocks.1', 'join'");
  const auto found = trained(3,
                             "return function()\n  return assert(require('perigee.solver').plan "
                             "{ pipe = 3, data = 1, tensor = 1 })\nend\n");
  CHECK(found.size() == 2);
  // The comparison can fail: another seed gives another model.
  job.good("train", same + "--set seed=7");
  CHECK(job.losses()[0] != Approx(losses[0]).epsilon(1e-6));
}

TEST_CASE("models of their authors' ops train the same on any number of ranks") {
  const Folder folder;
  const auto strategy = [&](const std::string& name, const std::string& methods) {
    return " --strategy " + folder.write(name + ".lua",
                                         "local m = require 'perigee.methods'\nreturn { "
                                         "m.parallel_mode { { 'tensor', 2 } }, " +
                                             methods + " }\n");
  };
  const std::string core = "m.checkpoint { 'blocks.*.attn.core' }";
  const std::vector<std::string> ways = {
      "--nproc 2 --strategy fsdp", "--nproc 2" + strategy("split", "m.tensor_parallel {}"),
      "--nproc 2" + strategy("sequence", "m.tensor_parallel { sequence = true }")};
  const std::string same =
      "--set data.text=[] --set data.synthetic=true --set data.sequence=8 --overwrite ";
  const std::string folder_of_models = "runtime/models/";
  for (const std::string name : {"megatron_gpt", "torchtitan_llama"}) {
    const bool gpt = name == "megatron_gpt";
    const TrainingJob job(model(folder_of_models + name + ".lua") +
                          "[model.options]\nlayers = 2\nwidth = 16\nheads = 4\nvocab = 64\n" +
                          (gpt ? "positions = 8\n" : "kv_heads = 2\nhidden = 32\n"));
    job.good("train", same);
    const auto losses = job.losses();
    REQUIRE(losses.size() == 4);
    auto all = ways;
    if (gpt) all.push_back("--nproc 2" + strategy("again", "m.tensor_parallel {}, " + core));
    for (const auto& way : all) {
      INFO(name << " " << way);
      job.good("train", same + way);
      check_losses(job, losses);
    }
  }
}

TEST_CASE("the gpt in Lua trains as the built-in gpt, resumes, is evaluated and sampled") {
  const TrainingJob built_in;
  built_in.good("train", "--set model.dtype=float64");
  const TrainingJob job(model("runtime/models/gpt.lua") +
                        "[model.options]\nlayers = 2\nwidth = 32\nheads = 2\n");
  job.good("train", "--nproc 2 --set train.steps=2");
  job.good("train", "--resume --nproc 2");
  check_losses(job, built_in.losses());
  CHECK_THAT(job.good("evaluate").out, Contains("val_loss"));
  CHECK(job.good("sample", "--tokens 5 --seed 3").out.size() >= 5);
  const auto changed = job("train", "--resume --set model.options.layers=3 --set train.steps=6");
  CHECK(changed.status == 2);
  CHECK_THAT(changed.err, Contains("model.options"));
}

TEST_CASE("the job or Alpa's arguments name an input that all samples share") {
  const Folder folder;
  const auto script = folder.write(
      "scores.lua",
      "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
      "local Net = nn.Module 'Net'\n"
      "function Net:init() self.up = nn.Linear(6, 6) end\n"
      "return {\n"
      "  batch = { table = { shape = { 6, 3 } }, x = { shape = { 6 } } },\n"
      "  model = function() return Net() end,\n"
      "  forward = function(net, batch)\n"
      "    local scores = torch.matmul(net.up(batch.x):unsqueeze(1), batch.table)\n"
      "    return { loss = (scores * scores):mean() }\n"
      "  end,\n}\n");
  const auto alpa = folder.write(
      "alpa.lua",
      "local alpa = require 'perigee.alpa'\n"
      "return alpa.parallelize {\n"
      "  method = alpa.DataParallel { num_micro_batches = 2 }, batch_argnums = { 2 } }\n");
  const TrainingJob job(model(script));
  const std::string same = "--set data.text=[] --set data.synthetic=true --overwrite ";
  const std::string named = "--set data.batched=[\"x\"] ";
  job.good("train", same + named);
  const auto losses = job.losses();
  REQUIRE(losses.size() == 4);
  for (const std::string& more :
       {named + "--nproc 2 --strategy ddp", named + "--set batch.micro=2",
        named + "--nproc 2 --strategy fsdp --set batch.micro=1",
        std::string("--set data.batched=[\"1\"] --nproc 2 --strategy ddp"),
        "--nproc 2 --strategy " + alpa,
        std::string("--nproc 2 --set alpa.DataParallel.num_micro_batches=2 "
                    "--set alpa.parallelize.batch_argnums=[2]")}) {
    INFO(more);
    job.good("train", same + more);
    check_losses(job, losses);
  }
  CHECK_THAT(job.good("train", same + named + "--nproc 2 --strategy ddp --check-gradients").out,
             Contains("gradients agree"));
  // As a batch, each sample has a table of its own.
  job.good("train", same);
  CHECK(job.losses()[0] != Approx(losses[0]).epsilon(1e-6));
  CHECK_THAT(job.refused("plan", "--set data.text=[] --set data.batched=[\"y\"]"),
             Contains("data.batched names inputs of the model (table, x), but got \"y\""));
  CHECK_THAT(job.refused("plan", "--set data.text=[] --set data.batched=[\"2\"]"),
             Contains("data.batched lists positions of the model's 2 inputs (table, x), from 0 "
                      "(Alpa's batch_argnums from 1), but got 2"));
}

TEST_CASE("a mistake in a model's script is an error at its line") {
  const Folder folder;
  const auto script = folder.write(
      "net.lua",
      "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
      "local Net = nn.Module 'Net'\n"
      "function Net:init() self.embed = nn.Embedding(256, 8) end\n"
      "return { model = function() return Net() end, forward = function(net, batch)\n"
      "  local x = torch.softmx(net.embed(batch.tokens), -1)\n"
      "  return { loss = x:sum() }\n"
      "end }\n");
  const TrainingJob job(model(script));
  const auto ran = job("plan");
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains("net.lua:5: [model] torch.softmx is no op of LibTorch, did you mean "
                               "\"softmax\"?"));
}

TEST_CASE("functions of a script are captured around a model of any kind") {
  const TrainingJob job;
  job.good("train", "--set model.dtype=float64");
  const auto built_in = job.losses();
  const auto script = [&](const std::string& loss, const std::string& prepare) {
    return job.folder().write(
        "around.lua",
        "local atorch = require 'perigee.atorch'\nlocal ok, result, best = atorch.auto_accelerate "
        "{\n model = 'job.toml', load_strategy = { 'parallel_mode' },\n"
        " loss_func = function(batch, logits)\n  local torch = require 'perigee.torch'\n  return " +
            loss +
            "\n end,\n prepare_input = function(batch)\n  local torch = require "
            "'perigee.torch'\n" +
            prepare + "\n  return batch\n end,\n}\nreturn best\n");
  };
  const auto with = [&](const std::string& strategy, const std::string& more = "") {
    job.good("train", "--overwrite --set model.dtype=float64 --strategy " + strategy + more);
    return job.losses();
  };
  const std::string plain =
      "torch.cross_entropy_loss(logits:flatten(0, 1), batch.labels:flatten())";
  check_losses(job, built_in);
  with(script(plain, ""));
  check_losses(job, built_in);
  // A list begins with the loss; functions before the model change its input.
  const auto shifted = with(script("{ " + plain + ", logits }",
                                   "  batch.tokens = torch.remainder(batch.tokens + 1, 256)"));
  CHECK(shifted[0] != Approx(built_in[0]).epsilon(1e-6));
  const auto half = with(script("0.5 * " + plain, ""));
  CHECK(half[0] == Approx(built_in[0] / 2).epsilon(1e-10));
  // Over ranks, resumed, and evaluated as on one.
  const auto doubled = script("2 * " + plain, "");
  const auto one = with(doubled);
  CHECK(one[0] == Approx(2 * built_in[0]).epsilon(1e-10));
  with(doubled, " --nproc 2");
  check_losses(job, one);
  with(doubled, " --nproc 2 --set train.steps=2");
  job.good("train", "--resume --set model.dtype=float64 --nproc 2 --strategy " + doubled);
  check_losses(job, one);
  CHECK(job.good("sample", "--tokens 5 --seed 3").out.size() >= 5);
  CHECK_THAT(job.refused("train", "--overwrite --strategy " + script("logits", "")),
             Contains("`loss` returns a scalar, but it returned float32[8, 32, 256]"));
  CHECK_THAT(job.refused("train", "--overwrite --strategy " + script("nil", "")),
             Contains("`loss` returns a tensor, but it returned nothing"));
  CHECK_THAT(job.refused("train", "--overwrite --strategy " + script(plain, "  batch = 3")),
             Contains("`prepare` returns a table of tensors by name"));
}
