// Texts that a model writes while it is trained (train.samples).
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

const std::string kSamples =
    " --set train.steps=4 --set train.checkpoint_every=2 --set train.sample_tokens=6 "
    "--set train.samples=[\"the\",\"a\"] ";

std::vector<json> samples_of(const TrainingJob& job) {
  std::vector<json> samples;
  std::istringstream lines(read(job.output() + "/samples.jsonl"));
  for (std::string line; std::getline(lines, line);) samples.push_back(json::parse(line));
  return samples;
}

}  // namespace

TEST_CASE("a model continues prompts after each checkpoint, and trains as without them") {
  const TrainingJob job("kind = \"gpt\"\nlayers = 2\nwidth = 32\nheads = 2\ndtype = \"float64\"\n");
  job.good("train", "--set train.steps=4");
  const auto losses = job.losses();
  const auto ran = job.good("train", "--overwrite" + kSamples);
  CHECK(job.losses() == losses);
  const auto samples = samples_of(job);
  REQUIRE(samples.size() == 4);
  CHECK(samples[0]["step"] == 2);
  CHECK(samples[3]["step"] == 4);
  CHECK(samples[3]["prompt"] == "a");
  CHECK_THAT(ran.err,
             Contains("a sample after step 2: \"the") && Contains("a sample after step 4: \"a"));
  const auto predicted = job.metrics().back()["summary"];
  CHECK(predicted["peak_bytes"] == predicted["predicted_peak_bytes"]);

  // The same text from the last checkpoint by `sample`, with the job's seed.
  const auto sampled = job.good("sample",
                                "--prompt the --tokens 6 --temperature 0.8 --top-k 40 --seed 1234");
  CHECK(sampled.out == "the" + samples[2]["text"].get<std::string>() + "\n");

  // Parts of the weights on two ranks; a resumed run adds to the file.
  job.good("train", "--overwrite --nproc 2 --strategy fsdp" + kSamples + "--set train.steps=2");
  job.good("train", "--resume --nproc 2" + kSamples);
  CHECK(samples_of(job) == samples);
}

TEST_CASE("a model whose weights are not finite, and not saved, continues no prompt") {
  const TrainingJob job;
  const std::string options =
      kSamples +
      "--set train.checkpoint_every=1 --set train.stop_if_not_finite=false "
      "--set optimizer.clip_norm=0 --set lr_schedule.min_lr=0 --set optimizer.lr=";
  job.good("train", options + "0 --set train.steps=1");
  const auto samples = samples_of(job);
  CHECK(samples.size() == 2);
  const auto ran = job.good("train", options + "1e39 --set train.steps=2 --resume");
  CHECK_THAT(ran.err, Contains("not finite after step 2: the checkpoint is not written"));
  CHECK(job.checkpoints() == std::vector<int>{1});
  CHECK(samples_of(job) == samples);
  for (const auto& line : job.metrics()) {
    if (line.contains("step")) CHECK(line.contains("checkpoint_s") == (line["step"] == 1));
  }
}

TEST_CASE("samples that cannot be written are refused before training") {
  const TrainingJob numbers("kind = \"mlp\"\ninputs = 8\noutputs = 4\nlayers = 2\nwidth = 8\n");
  CHECK_THAT(numbers.refused("train", "--set data.text=[] --set data.synthetic=true" + kSamples),
             Contains("must take \"tokens\" and give \"logits\", but mlp does not"));
  const TrainingJob job;
  CHECK_THAT(job.refused("train",
                         "--set data.text=[] --set data.synthetic=true "
                         "--set model.vocab=100" +
                             kSamples),
             Contains("must be below the model's 100, but \"the\" has 116"));
  CHECK_THAT(job.refused("train", "--nproc 2 --strategy epl_pipeline" + kSamples),
             Contains("text is not generated with a pipeline"));
}
