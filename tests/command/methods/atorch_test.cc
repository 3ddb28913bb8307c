// Trains scripts of ATorch's users.
#include <catch2/catch.hpp>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

// Returns a script of auto_accelerate with these arguments.
std::string accelerate(const TrainingJob& job, const std::string& arguments) {
  return job.folder().write("atorch.lua",
                            "local atorch = require 'perigee.atorch'\n"
                            "local ok, result, best = atorch.auto_accelerate {\n"
                            " model = 'job.toml', " +
                                arguments + " }\nreturn best\n");
}

// A model in Lua whose forward function has these parameters after the net.
std::string lua_model(const Folder& folder, const std::string& parameters) {
  return folder.write(
      "net.lua",
      "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
      "local Net = nn.Module 'Net'\n"
      "function Net:init() self.embed = nn.Embedding(256, 8) self.head = nn.Linear(8, 256) end\n"
      "return { model = function() return Net() end, forward = function(net, " +
          parameters +
          ")\n"
          "  local logits, loss = net.head(net.embed(tokens or batch.tokens)), nil\n"
          "  labels = labels or batch and batch.labels\n"
          "  if labels then loss = torch.cross_entropy_loss(logits:flatten(0, 1), "
          "labels:flatten()) end\n"
          "  return { loss = loss, logits = logits }\nend }\n");
}

}  // namespace

TEST_CASE("several instances of a mesh train the same model side by side") {
  const TrainingJob job;
  const std::string same = "--overwrite --set model.dtype=float64 ";
  job.good("train", same);
  const auto one = job.losses();
  const auto train = [&](const std::string& mode, int ranks) {
    job.good("train",
             same + "--nproc " + std::to_string(ranks) + " --strategy " +
                 accelerate(job, "load_strategy = { { 'parallel_mode', " + mode + " }, 'zero1' }"));
  };
  const auto axes = [&] {
    return nlohmann::json::parse(read(job.output() + "/plan.json"))["mesh"];
  };
  train("{ { { 'data', 2 } }, nil, true }", 4);
  check_losses(job, one);
  CHECK(axes()["axes"] == nlohmann::json::parse(R"([{"name": "data", "size": 2},
                                                    {"name": "instance", "size": 2}])"));
  train("{ { { 'data', 2 } }, { 1, 0 }, true }", 4);
  check_losses(job, one);
  CHECK(axes()["order"] == nlohmann::json({1, 0, 3, 2}));
  // Without it the data axis adjusts.
  train("{ { { 'data', 2 } }, nil, false }", 4);
  check_losses(job, one);
  CHECK(axes()["axes"] == nlohmann::json::parse(R"([{"name": "data", "size": 4}])"));
  CHECK_THAT(job.refused("train", same + "--nproc 3 --strategy " +
                                      accelerate(job,
                                                 "load_strategy = { { 'parallel_mode', { { { "
                                                 "'data', 2 } }, nil, true } } }")),
             Contains("the 3 ranks of this run must hold whole instances of 2 ranks"));
  job.good("train", same + "--set train.steps=2");
  train("{ { { 'data', 1 } }, nil, true }", 2);
  check_losses(job, one);
  CHECK(job.newest_checkpoint() == 4);
}

TEST_CASE("a batch that does not divide is rounded as in ATorch") {
  const TrainingJob job;
  const std::string same = "--overwrite --set model.dtype=float64 ";
  job.good("train", same);
  const auto eight = job.losses();
  const auto strategy = " --strategy " + accelerate(job,
                                                    "dataloader_args = { batch_size = 9 }, "
                                                    "load_strategy = { 'parallel_mode' }");
  const auto ran = job.good("train", same + "--nproc 2" + strategy);
  CHECK_THAT(ran.err, Contains("batch.global = 9 does not divide over 1 microbatch and the data "
                               "ranks: a step has 8 samples"));
  check_losses(job, eight);
  job.good("train", same + "--nproc 2 --set train.steps=2" + strategy);
  job.good("train", "--resume --set model.dtype=float64 --nproc 2" + strategy);
  check_losses(job, eight);
  job.good("train", same +
                        "--nproc 2 --strategy ddp --set batch.micro=2 --set batch.global=11 "
                        "--set batch.round=true");
  check_losses(job, eight);
  // At least one sample on each rank.
  CHECK_THAT(job.good("train", same + "--nproc 4 --strategy ddp --set batch.global=3 --set "
                                      "batch.round=true")
                 .err,
             Contains("a step has 4 samples"));
  CHECK_THAT(job.refused("train", same + "--nproc 2 --strategy ddp --set batch.global=9"),
             Contains("batch.global must divide"));
}

TEST_CASE("fields of a batch reach a model by their order") {
  const Folder scripts;
  const TrainingJob job("kind = \"lua\"\ndtype = \"float64\"\nfile = \"" +
                        lua_model(scripts, "batch, o, tokens, labels") + "\"\n");
  const std::string same = "--overwrite ";
  job.good("train", same);
  const auto named = job.losses();
  lua_model(scripts, "o, tokens, labels, batch");
  job.good("train", same + "--set model.unpack=sequence");
  check_losses(job, named);
  CHECK(job.good("sample", "--set model.unpack=sequence --tokens 3").out.size() >= 3);
  const auto script = accelerate(job,
                                 "model_input_format = 'unpack_sequence', load_strategy = {} ");
  job.good("train", same + "--nproc 2 --strategy " + script);
  check_losses(job, named);
  // A list that prepare returns keeps its order, and loss receives it.
  const auto prepared = accelerate(
      job,
      "model_input_format = 'unpack_sequence', load_strategy = {},\n"
      "prepare_input = function(batch) return { batch.labels, batch.tokens } end,\n"
      "loss_func = function(batch, logits)\n"
      "  local torch = require 'perigee.torch'\n"
      "  return torch.cross_entropy_loss(logits:flatten(0, 1), batch[1]:flatten())\nend");
  job.good("train", same + "--strategy " + prepared);
  CHECK(job.losses()[0] != Approx(named[0]).epsilon(1e-6));
  lua_model(scripts, "o, labels, tokens, batch");
  job.good("train", same + "--strategy " + prepared);
  check_losses(job, named);
}

TEST_CASE("a built-in model takes a batch's fields in order, and refuses a list without an order") {
  const TrainingJob job;
  const std::string same = "--overwrite --set model.dtype=float64 ";
  job.good("train", same);
  const auto named = job.losses();
  job.good("train", same + "--set model.unpack=sequence");
  check_losses(job, named);
  CHECK_THAT(job.refused("train", same + "--strategy " +
                                      accelerate(job,
                                                 "load_strategy = {}, prepare_input = "
                                                 "function(batch) return { batch.tokens } end")),
             Contains("a list is for model.unpack = \"sequence\""));
  CHECK_THAT(job.refused("train", same + "--set model.unpack=list"),
             Contains("model.unpack is one of dict, sequence"));
}

TEST_CASE("a parameter in two of ATorch's groups is refused") {
  const TrainingJob job;
  const auto groups = [&](const std::string& second) {
    return "--overwrite --strategy " +
           accelerate(job,
                      "load_strategy = {}, optim_param_func = function(model) return {\n"
                      "  { params = 'blocks.*.mlp.**', lr = 0.01 }, { params = '" +
                          second + "', lr = 0.1 } } end");
  };
  job.good("train", groups("embed.**"));
  CHECK_THAT(job.refused("train", groups("blocks.0.**")),
             Contains("a parameter is in one optimizer.group, but \"blocks.0.**\" has "
                      "blocks.0.mlp.") &&
                 Contains("which is in group 1, too"));
}
