// Stopping, resuming, and folders that hold a run.
#include <signal.h>

#include <catch2/catch.hpp>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

const std::string kDropout = " --set model.dropout=0.1 ";

}  // namespace

TEST_CASE("a resumed run is bit-equal to an uninterrupted one") {
  const TrainingJob whole, parts;
  const auto ranks = "--nproc 2" + kDropout + "--set train.steps=";
  whole.good("train", ranks + "6");
  parts.good("train", ranks + "3");
  parts.good("train", ranks + "6 --resume");
  CHECK(parts.losses() == whole.losses());
  CHECK(parts.weights() == whole.weights());
}

TEST_CASE("a run continues with another number of ranks") {
  const TrainingJob whole, parts;
  const auto same = kDropout + "--set model.dtype=float64 --set train.steps=";
  whole.good("train", same + "8");
  parts.good("train", "--nproc 2" + same + "3");
  parts.good("train", "--nproc 4 --resume" + same + "6");
  parts.good("train", "--nproc 1 --resume" + same + "8");
  const auto expected = whole.losses(), got = parts.losses();
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-10));
}

TEST_CASE("a run continues with its plan, on as many ranks") {
  const TrainingJob job;
  job.good("train", "--strategy tensor_parallel --nproc 4 --set train.steps=2");
  const auto plan = read(job.output() + "/plan.json");
  const auto same = job.good("train", "--set train.steps=4 --resume");
  CHECK_THAT(same.err, Contains("4 ranks") && !Contains("another number of ranks"));
  CHECK(read(job.output() + "/plan.json") == plan);
  const auto step = job.output() + "/checkpoints/step-4";
  CHECK_THAT(job.good("train", "--set train.steps=5 --resume " + step).err, Contains("4 ranks"));
  const auto fewer = job.good("train", "--set train.steps=6 --resume --nproc 1");
  CHECK_THAT(fewer.err,
             Contains("resumed with another number of ranks: 4 became 1, so that a new plan is "
                      "made by strategy auto") &&
                 Contains("a strategy had named the run's methods, parallel_mode, tensor_parallel: "
                          "give --strategy to keep them"));
  const auto smaller = job.good("train",
                                "--set train.steps=7 --resume --nproc 1 --set batch.micro=1");
  CHECK_THAT(smaller.err, Contains("resumed with batch.micro = 1, so that a new plan is made by "
                                   "strategy auto") &&
                              !Contains("had named"));
  const auto parts = nlohmann::json::parse(read(job.output() + "/plan.json"));
  CHECK(parts.at("microbatches") == 8);
  const auto refused = job.refused(
      "train", "--overwrite --set batch.micro=2 --plan " + job.output() + "/plan.json");
  CHECK_THAT(refused, Contains("the plan's steps have 8 microbatches, but batch.micro = 2 makes 4: "
                               "remove it, or make a new plan"));
}

TEST_CASE("a folder with a run is neither overwritten nor continued by mistake") {
  const TrainingJob job;
  CHECK_THAT(job.refused("train", "--resume"), Contains(job.output()));
  CHECK(!fs::exists(job.output()));
  job.good("train");
  const auto before = read(job.output() + "/metrics.jsonl");
  CHECK_THAT(job.refused("train"), Contains("--resume") && Contains("--overwrite"));
  CHECK_THAT(job.refused("train", "--resume --set model.width=64"), Contains("width"));
  CHECK_THAT(job.refused("train", "--resume --set seed=5"), Contains("seed"));
  // A run that cannot begin removes no file.
  job.refused("train", "--overwrite --set batch.micro=3");
  CHECK(read(job.output() + "/metrics.jsonl") == before);
  CHECK(job.newest_checkpoint() == 4);
  job.good("train", "--overwrite --set train.steps=2");
  CHECK(job.losses().size() == 2);
}

TEST_CASE("Ctrl-C and SIGTERM soon end all ranks, with a checkpoint if the job asks for it") {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const bool checkpoint : {false, true}) {
      const TrainingJob job;
      Process process(
          job.words(
              "train",
              "--nproc 2 --set train.checkpoint_every=0 --set train.checkpoint_when_stopped=" +
                  std::string(checkpoint ? "true" : "false") + kLong),
          job.how());
      process.wait_for("step 2/");
      const double begin = now();
      process.signal(signal);
      const auto ran = process.wait();  // until all ranks have closed their streams
      CHECK(now() - begin < 2);
      CHECK(ran.status == 1);
      const auto steps = static_cast<int>(job.losses().size());
      const auto told = "stopped by a signal after step " + std::to_string(steps) + "\n";
      CHECK_THAT(ran.err, Catch::Matchers::EndsWith(told));
      CHECK_THAT(read(job.output() + "/log.txt"), Catch::Matchers::EndsWith(told));
      CHECK(job.newest_checkpoint() == (checkpoint ? steps : 0));
      if (checkpoint)
        job.good("train", "--nproc 2 --resume --set train.steps=" + std::to_string(steps + 2));
    }
  }
}

TEST_CASE("one request to all processes of a job is one request") {
  const TrainingJob job;
  Process process(job.words("train", "--nproc 2 --set train.checkpoint_when_stopped=true" + kLong),
                  job.how());
  process.wait_for("step 2/");
  for (const auto rank : children(process.pid())) ::kill(rank, SIGTERM);
  process.signal(SIGTERM);
  const auto ran = process.wait();
  INFO(ran.err);
  CHECK(ran.status == 1);
  const auto steps = static_cast<int>(job.losses().size());
  CHECK_THAT(ran.err, Catch::Matchers::EndsWith("stopped by a signal after step " +
                                                std::to_string(steps) + "\n"));
  CHECK(job.newest_checkpoint() == steps);
}

TEST_CASE("a second Ctrl-C does not wait for the checkpoint") {
  const TrainingJob job;
  Process process(job.words("train", "--nproc 2 --set train.checkpoint_when_stopped=true" + kLong),
                  job.how());
  process.wait_for("step 2/");
  const auto ranks = children(process.pid());
  REQUIRE(ranks.size() == 2);
  ::kill(ranks[1], SIGSTOP);  // delays the checkpoint
  const double begin = now();
  process.signal(SIGINT);
  process.signal(SIGTERM);  // another number: equal pending signals are one
  const auto ran = process.wait();
  CHECK(now() - begin < 2);
  CHECK(ran.status == 1);
  CHECK_THAT(ran.err, Contains("ended by a signal") && Contains("last checkpoint"));
}

TEST_CASE("kill -9 of the command ends all ranks") {
  const TrainingJob job;
  Process process(job.words("train", "--nproc 2" + kLong), job.how());
  process.wait_for("step 2/");
  const double begin = now();
  process.signal(SIGKILL);
  process.wait();  // until the ranks, too, have closed their streams
  CHECK(now() - begin < 2);
}

TEST_CASE("copies of the model that differ are no fault of a rank") {
  const TrainingJob job;
  const auto keys = std::string("--nproc 2 --strategy local_sgd --set train.check_replicas=1 ");
  job.good("train", keys + "--set train.steps=3");
}

TEST_CASE("a run of rounded batches goes on with the next sample on another number of ranks") {
  const std::string keys =
      "--set model.dtype=float64 --set optimizer.lr=0.0 "
      "--set optimizer.weight_decay=0.0 --strategy ddp ";
  const TrainingJob one, job;
  one.good("train", keys + "--set batch.global=1 --set train.steps=33");
  const auto rounded = keys +
                       "--set batch.global=10 --set batch.round=true "
                       "--set train.checkpoint_every=1 ";
  job.good("train", rounded + "--nproc 4 --set train.steps=2");  // 8 samples a step
  const auto ran = job.good("train", rounded + "--nproc 3 --resume --set train.steps=3");  // 9
  CHECK_THAT(ran.err, Contains("steps have 9 samples now, others than before"));
  job.good("train", rounded + "--nproc 4 --resume --set train.steps=4");
  const auto samples = one.metrics(), steps = job.metrics();
  int64_t first = 0;
  for (const auto& [step, count] : {std::pair{0, 8}, {1, 8}, {2, 9}, {3, 8}}) {
    double mean = 0;
    for (int i = 0; i < count; ++i) mean += samples.at(first++)["loss"].get<double>() / count;
    CHECK(std::abs(steps.at(step)["loss"].get<double>() - mean) < 1e-10);
  }
}
