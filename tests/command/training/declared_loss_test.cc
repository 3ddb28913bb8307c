// The key model.loss: a loss that has no proof is declared, and the first step checks the declaration.
#include <catch2/catch.hpp>
#include <filesystem>

#include "tests/command/job.h"

using namespace perigee;
using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

// A sum over samples that an index takes, or a mean that divides by a sum of such weights.
constexpr const char* kModel = R"(
local nn, torch = require "perigee.nn", require "perigee.torch"
return {
  options = { loss = "sum" },
  batch = function()
    return { x = { shape = { 4 } }, y = { shape = { 4 } }, kept = { shape = { 4 }, classes = 2 } }
  end,
  model = function() return nn.Linear(4, 4) end,
  forward = function(net, batch, o)
    local errors = (net(batch.x) - batch.y):pow(2)
    local rows = torch.arange(errors:size(0), { dtype = "int64" })
    if o.loss == "weighted" then
      local kept = torch.index_select(batch.kept, 0, rows)
      return { loss = (errors * batch.kept):sum() / kept:sum():clamp_min(1) }
    end
    if o.loss == "renormed" then return { loss = torch.renorm(errors, 2, 1, 1):sum() } end
    return { loss = torch.index_select(errors, 0, rows):sum() }
  end,
}
)";

}  // namespace

TEST_CASE("an op without a sharding rule is reported once, and runs whole on every rank") {
  const Folder folder;
  const auto file = std::filesystem::absolute(folder.write("model.lua", kModel)).string();
  const TrainingJob job("kind = \"lua\"\ndtype = \"float64\"\nfile = \"" + file + "\"\n");
  const std::string same =
      "--set data.text=[] --set data.synthetic=true --overwrite --set model.options.loss=";
  const std::string two = " --nproc 2 --strategy ddp --set batch.micro=4";
  const std::string report =
      "ops without a sharding rule run whole on every rank: aten::renorm in ";
  CHECK_THAT(job.good("train", same + "renormed --set batch.micro=8").err, !Contains(report));
  const auto losses = job.losses();
  const auto ran = job.good("train", same + "renormed" + two);
  CHECK_THAT(ran.err, Contains(report));
  CHECK(ran.err.find(report) == ran.err.rfind(report));
  check_losses(job, losses);
  CHECK_THAT(job.good("train", same + "weighted" + two).err, !Contains("without a sharding rule"));
}

TEST_CASE("model.loss declares a loss without a proof, and the first step checks it by number") {
  const Folder folder;
  const auto file = std::filesystem::absolute(folder.write("model.lua", kModel)).string();
  const TrainingJob job("kind = \"lua\"\ndtype = \"float64\"\nfile = \"" + file + "\"\n");
  const std::string same = "--set data.text=[] --set data.synthetic=true --overwrite ";
  const std::string cut = same + "--nproc 2 --strategy ddp --set batch.micro=2 ";
  for (const std::string loss : {"sum", "weighted"}) {
    const auto of_model = "--set model.options.loss=" + loss + " ";
    CHECK_THAT(job.refused("train", cut + of_model), Contains("declare it (model.loss in a job"));
    job.good("train", same + of_model + "--set batch.micro=8");
    const auto losses = job.losses();
    REQUIRE(losses.size() == 4);
    job.good("train", cut + of_model + "--set model.loss=" + loss);
    check_losses(job, losses);
  }
  const auto wrong = job.refused("train", cut + "--set model.loss=mean");
  CHECK_THAT(wrong, Contains("a loss that is declared a mean over samples must be one, but of the "
                             "first two microbatches as one batch it is"));
}
