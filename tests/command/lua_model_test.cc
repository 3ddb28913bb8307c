// Models written in Lua, trained as a user trains them.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/job.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

void check_losses(const TrainingJob& job, const std::vector<double>& expected) {
  const auto losses = job.losses();
  REQUIRE(losses.size() == expected.size());
  for (size_t i = 0; i < losses.size(); ++i) {
    CHECK(losses[i] == Approx(expected[i]).epsilon(1e-10));
  }
}

std::string model(const std::string& name) {
  return "--set model.kind=lua --set model.dtype=float64 --set model.file=" +
         std::filesystem::absolute("runtime/models/" + name + ".lua").string() + " ";
}

}  // namespace

TEST_CASE("an encoder-decoder in Lua trains the same on any ranks") {
  const TrainingJob job;
  const std::string same = model("transformer") +
                           "--set data.text=[] --set data.synthetic=true --set data.sequence=8 "
                           "--set model.options.layers=2 --set model.options.width=16 "
                           "--set model.options.hidden=32 --set model.options.dropout=0.1 "
                           "--overwrite ";
  job.good("train", same);
  const auto losses = job.losses();
  REQUIRE(losses.size() == 4);
  for (const std::string more : {"--nproc 2 --strategy ddp",
                                 "--nproc 2 --set batch.micro=1",
                                 "--nproc 2 --strategy fsdp_low_memory",
                                 "--nproc 4 --strategy pipeline_parallel",
                                 "--nproc 4 --strategy transformer"}) {
    INFO(more);
    job.good("train", same + more);
    check_losses(job, losses);
  }
  // The comparison can fail: another option is another model.
  job.good("train", same + "--set model.options.heads=2");
  CHECK(job.losses()[0] != Approx(losses[0]).epsilon(1e-6));
}

TEST_CASE("the gpt in Lua trains as the built-in gpt, resumes, is evaluated and sampled") {
  const TrainingJob job;
  job.good("train", "--set model.dtype=float64 --overwrite");
  const auto losses = job.losses();
  const std::string lua = model("gpt") +
                          "--set model.options.layers=2 --set model.options.width=32 "
                          "--set model.options.heads=2 ";
  job.good("train", lua + "--overwrite --nproc 2 --set train.steps=2");
  job.good("train", lua + "--resume --nproc 2");
  check_losses(job, losses);
  CHECK_THAT(job.good("evaluate", lua).out, Contains("val_loss"));
  CHECK(job.good("sample", lua + "--tokens 5 --seed 3").out.size() >= 5);
  const auto changed = job("train", lua + "--resume --set model.options.layers=3");
  CHECK(changed.status == 2);
  CHECK_THAT(changed.err, Contains("model.options"));
}

TEST_CASE("a mistake in a model's script is an error at its line") {
  const TrainingJob job;
  const auto script = job.folder().write(
      "net.lua",
      "local nn, torch = require 'perigee.nn', require 'perigee.torch'\n"
      "local Net = nn.Module 'Net'\n"
      "function Net:init() self.embed = nn.Embedding(256, 8) end\n"
      "return { model = function() return Net() end, forward = function(net, batch)\n"
      "  local x = torch.softmx(net.embed(batch.tokens), -1)\n"
      "  return { loss = x:sum() }\n"
      "end }\n");
  const auto ran = job("plan", "--set model.kind=lua --set model.file=" + script);
  CHECK(ran.status == 2);
  CHECK_THAT(ran.err, Contains("net.lua:5: [model] torch.softmx is no op of LibTorch, did you mean "
                               "\"softmax\"?"));
}
