// Ranks that train copies of the model, in processes (strategies/data_parallel/local_sgd.lua
// averages every 2 steps).
#include <catch2/catch.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;

namespace {

const std::string kLocal =
    "--nproc 2 --strategy local_sgd --set model.dropout=0.1 --set train.steps=";

}  // namespace

TEST_CASE("copies resumed between two averages are bit-equal to an uninterrupted run") {
  const TrainingJob whole, parts;
  whole.good("train", kLocal + "6");
  parts.good("train", kLocal + "3");
  // Between averages a checkpoint has each copy, and their average under the parameter's name.
  CHECK_THAT(read(parts.output() + "/checkpoints/step-3/index.json"),
             Contains("copies:blocks.0.norm1.weight") && Contains("copies:exp_avg:embed.weight"));
  CHECK_THAT(parts.good("train", kLocal + "6 --resume").err, !Contains("are averaged"));
  CHECK(parts.losses() == whole.losses());
  CHECK(parts.weights() == whole.weights());
  // Directly after an average, a checkpoint has copies only of values that are not averaged.
  const auto index = read(whole.output() + "/checkpoints/step-6/index.json");
  CHECK_THAT(index, !Contains("copies:blocks") && Contains("copies:exp_avg:blocks"));
  const TrainingJob data;
  data.good("train", "--nproc 2 --set model.dropout=0.1 --set train.steps=6");
  CHECK(data.losses() != whole.losses());
}

TEST_CASE("a run of copies continues as one model, or as another number of copies") {
  const TrainingJob job;
  job.good("train", kLocal + "3");
  const auto evaluate = [&](const std::string& more) {
    return nlohmann::json::parse(job.good("evaluate", "--json " + more).out)["val_loss"]
        .get<double>();
  };
  CHECK(evaluate("") == Approx(evaluate("--nproc 2")).epsilon(1e-5));
  const auto one = job.good(
      "train", "--resume --nproc 2 --strategy ddp --set model.dropout=0.1 --set train.steps=4");
  CHECK_THAT(one.err, Contains("the 2 copies of the model in " + job.output() +
                               "/checkpoints/step-3 are averaged: the plan has 1"));
  const TrainingJob more;
  more.good("train", kLocal + "3");
  more.good("train",
            "--resume --nproc 4 --strategy local_sgd --set model.dropout=0.1 "
            "--set train.steps=5");
  CHECK(more.losses().size() == 5);
}

TEST_CASE("a method that a shipped strategy defines is available by its name") {
  const TrainingJob named, shipped;
  shipped.good("train", kLocal + "4");
  const auto file = named.folder().write(
      "mine.lua", "return { \"parallel_mode\", { \"local_sgd\", { every = 2 } } }\n");
  named.good("train", "--nproc 2 --set model.dropout=0.1 --set train.steps=4 --strategy " + file);
  CHECK(named.losses() == shipped.losses());
  const auto wrong = named.folder().write("wrong.lua",
                                          "return { { \"local_sgd\", { evry = 2 } } }");
  CHECK_THAT(named.refused("train", "--overwrite --strategy " + wrong), Contains("every"));
}
