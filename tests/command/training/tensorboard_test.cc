// Event files of a run, read by TensorBoard's own reader.
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using nlohmann::json;

TEST_CASE("TensorBoard reads a run's metrics, also of one that went back") {
  const TrainingJob job;
  const std::string more =
      "--nproc 2 --set train.tensorboard=true --set train.checkpoint_every=2 "
      "--set train.validate_every=2";
  job.good("train", more + " --set train.steps=4");
  job.good("train", more + " --set train.steps=5 --resume " + job.output() + "/checkpoints/step-2");
  // Those of an overwritten run are removed.
  const TrainingJob again;
  for (int run = 0; run < 2; ++run) {
    again.good("train", "--nproc 1 --overwrite --set train.tensorboard=true --set train.steps=1");
    CHECK(std::ranges::count_if(names_in(again.output()), [](const std::string& name) {
            return name.starts_with("events.out.tfevents.");
          }) == 1);
  }
  const auto packages = std::filesystem::path(std::getenv("PERIGEE_BUILD")) /
                        "tensorboard_packages";
  Process process(
      {"python3", "tests/command/training/read_events.py", packages.string(), job.output()},
      {.seconds = 300});
  const auto read = process.wait();
  INFO(read.out << read.err);
  if (read.status == 77) {
    WARN("the package tensorboard could not be fetched: the events were not read");
    return;
  }
  REQUIRE(read.status == 0);
  const auto tags = json::parse(read.out.substr(read.out.rfind("\n{") + 1));
  json losses = json::array(), validation = json::array();
  for (const auto& row : job.metrics()) {
    if (!row.contains("step")) continue;
    losses.push_back({row["step"], static_cast<float>(row["loss"].get<double>())});
    if (row.contains("val_loss")) {
      validation.push_back({row["step"], static_cast<float>(row["val_loss"].get<double>())});
    }
  }
  CHECK(losses.size() == 5);
  CHECK(tags.at("loss/train") == losses);
  CHECK(tags.at("loss/validation") == validation);
  CHECK(tags.at("memory/largest_peak_bytes").size() == 5);
  CHECK(tags.at("speed/tokens_per_s").size() == 5);
}
