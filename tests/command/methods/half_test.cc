// half over real processes: the shipped strategy, contents of checkpoints and exports, resuming.
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <regex>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Contains;

namespace {

std::string half_strategy(const TrainingJob& job, const std::string& config) {
  return job.folder().write("half.lua",
                            "local m = require \"perigee.methods\"\n"
                            "return { m.parallel_mode {}, m.half " +
                                config + " }\n");
}

const std::string kMasters = "{ dtype = \"bf16\" }",
                  kAlone = "{ dtype = \"bf16\", masters = false }";

}  // namespace

TEST_CASE("a model in bfloat16 reports losses of float32, over microbatches and ranks") {
  const TrainingJob job;
  const std::string low =
      "--overwrite --set model.dtype=bfloat16 --set train.validate_every=4 --nproc ";
  std::vector<double> losses;
  for (const std::string more :
       {"1", "1 --set batch.micro=2", "2", "2 --strategy pipeline_parallel"}) {
    INFO(more);
    const auto log = job.good("train", low + more + " --set train.log_every=1").err;
    const std::regex printed("loss ([0-9.]+)");
    int lines = 0;
    for (std::sregex_iterator line(log.begin(), log.end(), printed), end; line != end; ++line) {
      const double loss = 32 * std::stod((*line)[1]);
      CHECK(std::abs(loss - std::round(loss)) > 32 * 1e-4);  // a multiple of 1/32 has 4 digits here
      ++lines;
    }
    CHECK(lines >= 5);  // one of the validation
    const auto found = job.losses();
    REQUIRE(found.size() == 4);
    if (losses.empty()) losses = found;
    for (size_t i = 0; i < found.size(); ++i) {
      CHECK(found[i] == Approx(losses[i]).margin(1e-3));
      // In bfloat16 a loss between 4 and 8 is a multiple of 1/32.
      CHECK(32 * found[i] != std::round(32 * found[i]));
    }
    const double validation = job.metrics()[3]["val_loss"];
    CHECK(32 * validation != std::round(32 * validation));
  }
}

TEST_CASE("the shipped strategy half trains, checks and explains itself") {
  const TrainingJob job;
  job.good("train");
  const auto plain = job.losses();
  job.good("train", "--strategy half --overwrite --nproc 2");
  const auto losses = job.losses();
  REQUIRE(losses.size() == 4);
  CHECK(losses != plain);
  for (size_t i = 0; i < losses.size(); ++i) CHECK(losses[i] == Approx(plain[i]).epsilon(2e-2));
  const auto summary = job.metrics().back()["summary"];
  CHECK(summary["peak_bytes"] == summary["predicted_peak_bytes"]);
  CHECK_THAT(job.good("plan", "--strategy half --explain").out,
             Contains("are bfloat16, with float32 masters"));
  CHECK(run("check strategies/execution/half.lua").status == 0);
}

TEST_CASE("checkpoints and exports of half hold the masters, or without them the low weights") {
  for (const auto& [config, dtype] : {std::pair(kMasters, "F32"), std::pair(kAlone, "BF16")}) {
    INFO(config);
    const TrainingJob job;
    job.good("train", "--nproc 2 --strategy " + half_strategy(job, config));
    const auto header = job.weights().substr(8, 400);
    CHECK((header.find(std::string("\"dtype\":\"") + dtype + "\"") != header.npos));
    // A run of another precision reads it.
    const auto low = nlohmann::json::parse(
        job.good("evaluate", "--json --strategy " + half_strategy(job, config)).out);
    const auto full = nlohmann::json::parse(job.good("evaluate", "--json").out);
    CHECK(low["val_loss"].get<double>() == Approx(full["val_loss"].get<double>()).epsilon(1e-2));
    job.good("sample", "--tokens 2");
  }
}

TEST_CASE("a half run that stops and resumes is bit-equal, with masters and without") {
  for (const auto& config : {kMasters, kAlone}) {
    INFO(config);
    const TrainingJob whole, parts;
    const auto more = [&](const TrainingJob& job) {
      return "--nproc 2 --strategy " + half_strategy(job, config) + " --set train.steps=";
    };
    whole.good("train", more(whole) + "4");
    parts.good("train", more(parts) + "2");
    parts.good("train", more(parts) + "4 --resume");
    CHECK(parts.losses() == whole.losses());
    CHECK((parts.weights() == whole.weights()));
  }
}

TEST_CASE("half and amp_native combine if their types agree") {
  const TrainingJob job;
  const auto both = [&](const std::string& first, const std::string& second) {
    return "--strategy " +
           job.folder().write("both.lua", "return { " + first + ", " + second + " }\n");
  };
  const std::string half = "{ \"half\", \"bf16\" }", amp = "{ \"amp_native\", \"bf16\" }",
                    other = "{ \"amp_native\", \"fp16\" }";
  const auto out = job.good("plan", both(half, amp)).out;
  CHECK_THAT(out, Contains("\"parameters\": \"masters\""));
  CHECK_THAT(job.good("plan", both(amp, half)).out, Contains("\"parameters\": \"masters\""));
  for (const auto& options : {both(half, other), both(other, half)}) {
    CHECK_THAT(job.refused("plan", options), Contains("half and amp_native must name one type"));
  }
}

TEST_CASE("mistakes in half's config are errors before the run starts") {
  const TrainingJob job;
  const auto refusal = [&](const std::string& config) {
    return job.refused("plan", "--strategy " + half_strategy(job, config));
  };
  CHECK_THAT(refusal("{ masters = false }"), Contains("must be bf16, but dtype is float16"));
  CHECK_THAT(refusal("{ dtype = \"bf16\", gradients = \"fp16\" }"),
             Contains("gradients must be bfloat16 or float32, but got float16"));
  CHECK_THAT(refusal("{ dtype = \"int8\" }"), Contains("dtype must be one of fp16, bf16"));
  CHECK_THAT(refusal("{ dtyp = \"bf16\" }"), Contains("did you mean \"dtype\"?"));
}
