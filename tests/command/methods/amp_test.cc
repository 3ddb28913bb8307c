// amp_native over real processes: the shipped strategy, skipped steps, and a scale that is resumed.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Contains;

namespace {

std::string strategy(const TrainingJob& job, const std::string& config) {
  return job.folder().write("amp.lua",
                            "local m = require \"perigee.methods\"\n"
                            "return { m.parallel_mode {}, m.amp_native " +
                                config + " }\n");
}

}  // namespace

TEST_CASE("the shipped strategy amp_native trains, checks and explains itself") {
  const TrainingJob job;
  job.good("train");
  const auto plain = job.losses();
  const auto one = "--strategy amp_native --overwrite";
  job.good("train", one);
  const auto one_rank = job.losses();
  job.good("train", std::string(one) + " --nproc 2");
  const auto losses = job.losses();
  REQUIRE(losses.size() == 4);
  CHECK(losses != plain);
  for (size_t i = 0; i < losses.size(); ++i) {
    CHECK(losses[i] == Approx(plain[i]).epsilon(1e-2));
    CHECK(losses[i] == Approx(one_rank[i]).epsilon(2e-3));
  }
  CHECK(losses.back() < losses.front());
  const auto summary = job.metrics().back()["summary"];
  CHECK(summary["peak_bytes"] == summary["predicted_peak_bytes"]);
  CHECK_THAT(job.good("plan", "--strategy amp_native --explain").out,
             Contains("ops of the forward pass compute in bfloat16"));
  CHECK(run("check strategies/execution/amp_native.lua").status == 0);
  // The same strategy as plain data, with only the dtype.
  const auto data = job.folder().write("data.lua", "return { { \"amp_native\", \"bf16\" } }\n");
  job.good("train", "--overwrite --strategy " + data);
  CHECK(job.losses() == one_rank);
  job.good("train", "--overwrite --nproc 2 --strategy epl_amp");
  for (size_t i = 0; i < losses.size(); ++i)
    CHECK(job.losses()[i] == Approx(plain[i]).epsilon(1e-2));
}

TEST_CASE("a float16 run that stops and resumes is bit-equal, its scale included") {
  const TrainingJob whole, parts;
  const std::string config = "{ growth_interval = 2, init_scale = 4194304 }";
  const auto more = [&](const TrainingJob& job) {
    return "--nproc 2 --strategy " + strategy(job, config) + " --set train.steps=";
  };
  whole.good("train", more(whole) + "6");
  parts.good("train", more(parts) + "3");
  parts.good("train", more(parts) + "6 --resume");
  CHECK(parts.losses() == whole.losses());
  CHECK((parts.weights() == whole.weights()));
  const auto scales = [](const TrainingJob& job) {
    std::vector<double> list;
    bool skipped = false;
    for (const auto& line : job.metrics()) {
      if (!line.contains("step")) continue;
      list.push_back(line["loss_scale"]);
      // A skipped step halves the scale, and no other does.
      if (list.size() > 1) CHECK((list.back() < list[list.size() - 2]) == skipped);
      skipped = line.contains("skipped");
    }
    return list;
  };
  CHECK(scales(parts) == scales(whole));
  CHECK(scales(whole).front() == 4194304);
}

TEST_CASE("a sharded float16 run stops, resumes and validates") {
  const TrainingJob whole, parts;
  const auto more = [&](const TrainingJob& job) {
    const auto file = job.folder().write(
        "fsdp.lua",
        "local m = require \"perigee.methods\"\n"
        "return { m.parallel_mode {}, m.fsdp { match = \"blocks.*\" }, m.amp_native {} }\n");
    return "--nproc 2 --set train.validate_every=2 --strategy " + file + " --set train.steps=";
  };
  whole.good("train", more(whole) + "4");
  parts.good("train", more(parts) + "2");
  parts.good("train", more(parts) + "4 --resume");
  CHECK(parts.losses() == whole.losses());
  CHECK((parts.weights() == whole.weights()));
  const auto last = whole.metrics()[3];
  CHECK(last["val_loss"].get<double>() < whole.losses()[0]);
  CHECK(last["loss_scale"] == 65536);
}

TEST_CASE("steps that overflow are reported in metrics.jsonl and change nothing") {
  const TrainingJob job;
  job.good("train", "--nproc 2 --set train.steps=2 --strategy " +
                        strategy(job, "{ dtype = \"fp16\", init_scale = 1e30 }"));
  const auto lines = job.metrics();
  CHECK(lines[0]["skipped"] == true);
  CHECK(lines[0]["loss_scale"].get<float>() == 1e30f);
  CHECK(lines[0]["grad_norm"].is_null());
  CHECK(lines[1]["loss_scale"].get<float>() == 5e29f);
  const auto after = job.weights();
  const TrainingJob other;
  const auto train = [&](const std::string& config, int steps) {
    other.good("train", "--overwrite --set train.steps=" + std::to_string(steps) + " --strategy " +
                            strategy(other, config));
    return other.weights();
  };
  CHECK((train("{ loss_scale = 1e30 }", 1) == after));
  CHECK((train("{ loss_scale = 1024 }", 1) != after));
}

TEST_CASE("a resumed run can start to scale its loss") {
  const TrainingJob job;
  job.good("train", "--set train.steps=2");
  job.good("train", "--set train.steps=3 --resume --strategy " + strategy(job, "{ \"fp16\" }"));
  CHECK(job.metrics()[2]["loss_scale"] == 65536);
}

TEST_CASE("mistakes in amp_native's config are errors before the run starts") {
  const TrainingJob job;
  const auto refusal = [&](const std::string& config) {
    return job.refused("plan", "--strategy " + strategy(job, config));
  };
  CHECK_THAT(
      refusal("{ dtype = \"fp8\" }"),
      Contains("dtype must be one of fp16, bf16, float16, half, bfloat16, but got \"fp8\", did "
               "you mean \"fp16\"?"));
  CHECK_THAT(refusal("{ \"bf16\", dtype = \"fp16\" }"), Contains("dtype must be given once"));
  CHECK_THAT(refusal("{ dtype = \"bf16\", growth_interval = 5 }"), Contains("bf16 has none"));
  CHECK_THAT(refusal("{ loss_scale = 8, init_scale = 16 }"), Contains("loss_scale is a constant"));
  CHECK_THAT(refusal("{ loss_scale = \"static\" }"), Contains("\"none\", \"given\" or a number"));
  CHECK_THAT(refusal("{ loss_scale = 8, hysteresis = 2 }"), Contains("loss_scale is a constant"));
  CHECK_THAT(refusal("{ init_scale = 8, min_scale = 16 }"), Contains("from 0 to init_scale (8)"));
  CHECK_THAT(refusal("{ skip_if_nonfinite = false }"), Contains("non-finite steps are skipped"));
  CHECK_THAT(refusal("{ growth_factor = 0.5 }"), Contains("growth_factor must be above 1"));
  CHECK_THAT(refusal("{ match = \"block.*\" }"), Contains("did you mean"));
  CHECK_THAT(refusal("{ deny = { \"mn\" } }"), Contains("must name ops of the forward pass"));
  CHECK_THAT(refusal("{ allow = { \"add\" }, deny = { \"add\" } }"), Contains("repeats"));
}
