// Bad data, changed learning rates, ranks that stand still: a run's checkpoints, log and status.
#include <signal.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/command/job.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int kBatch = 4, kInputs = 6, kOutputs = 3;

// Returns a safetensors file with the batches of those numbers; batch `bad` has one sample with a
// number that is not one.
std::string batches(const std::vector<int>& numbers, int bad) {
  std::string x, y;
  const auto add = [](std::string& bytes, float value) {
    char word[sizeof value];
    std::memcpy(word, &value, sizeof value);
    bytes.append(word, sizeof word);
  };
  for (const int number : numbers) {
    for (int i = 0; i < kBatch * kInputs; ++i) {
      const bool nan = number == bad && i == kInputs + 2;
      add(x, nan ? std::numeric_limits<float>::quiet_NaN() : float((7 * number + 3 * i) % 11) - 5);
    }
    for (int i = 0; i < kBatch * kOutputs; ++i) add(y, float((5 * number + i) % 7) - 3);
  }
  const auto samples = std::to_string(kBatch * numbers.size());
  auto head = "{\"x\":{\"dtype\":\"F32\",\"shape\":[" + samples + "," + std::to_string(kInputs) +
              "],\"data_offsets\":[0," + std::to_string(x.size()) +
              "]},\"y\":{\"dtype\":\"F32\",\"shape\":[" + samples + "," + std::to_string(kOutputs) +
              "],\"data_offsets\":[" + std::to_string(x.size()) + "," +
              std::to_string(x.size() + y.size()) + "]}}";
  while (head.size() % 8 != 0) head += ' ';
  std::string file(8, '\0');
  const uint64_t size = head.size();
  std::memcpy(file.data(), &size, sizeof size);
  return file + head + x + y;
}

// A job over five batches in order, of which the third is bad.
struct BadBatch {
  TrainingJob job{
      "kind = \"mlp\"\ninputs = 6\nwidth = 8\nlayers = 2\noutputs = 3\nloss = \"mse\"\n"};
  std::string bad = job.folder().write("bad.safetensors", batches({0, 1, 2, 3, 4}, 2));
  std::string without = job.folder().write("without.safetensors", batches({0, 1, 3, 4}, 2));

  std::string options(const std::string& file, int steps, const std::string& more = "") const {
    return "--set data.text=[] --set data.tensors=['" + file +
           "'] --set data.validation=0 --set data.sampler=sequential --set batch.global=4 "
           "--set train.checkpoint_every=1 --set train.steps=" +
           std::to_string(steps) + " " + more;
  }
};

// Stops a process for 35% of each 10 ms during the object's lifetime.
class DutyCycle {
 public:
  explicit DutyCycle(pid_t pid) : pid_(pid), thread_([this] { run(); }) {}
  ~DutyCycle() {
    ends_ = true;
    thread_.join();
  }
  DutyCycle(const DutyCycle&) = delete;
  DutyCycle& operator=(const DutyCycle&) = delete;

 private:
  void run() const {
    auto next = std::chrono::steady_clock::now();
    while (!ends_) {
      ::kill(pid_, SIGSTOP);
      std::this_thread::sleep_until(next += std::chrono::microseconds(3500));
      ::kill(pid_, SIGCONT);
      std::this_thread::sleep_until(next += std::chrono::microseconds(6500));
    }
  }

  const pid_t pid_;
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// Returns the number of the last step that the log names before a position.
int64_t step_before(const std::string& log, size_t position) {
  const auto at = log.rfind(": step ", position);
  return at == log.npos ? 0 : std::stoll(log.substr(at + 7));
}

}  // namespace

TEST_CASE("bad data end a run before its weights are bad, and it goes on without them") {
  for (const std::string ranks : {"--nproc 1 ", "--nproc 2 "}) {
    const BadBatch bad;
    const auto& job = bad.job;
    const auto error = job.refused("train", ranks + bad.options(bad.bad, 5), 1);
    CHECK_THAT(error, Contains("step 3 is bad") && Contains("samples 8 to 11, indices 8-11") &&
                          Contains("train.skip_bad_steps = 1"));
    CHECK(job.checkpoints() == std::vector<int>{1, 2});
    const auto line = job.metrics().back();
    CHECK(line["step"] == 3);
    CHECK(line["loss"].is_null());
    CHECK(line["bad_samples"] == std::vector<int>{8, 9, 10, 11});

    const auto ran = job.good("train", ranks + bad.options(bad.bad, 5,
                                                           "--resume --set "
                                                           "train.skip_bad_steps=1"));
    CHECK_THAT(ran.err + ran.out, Contains("it is skipped") && Contains("1 bad step"));
    CHECK(((ran.err + ran.out).find("ranks computed ") != std::string::npos) ==
          (ranks == "--nproc 2 "));
    CHECK(job.metrics().back()["summary"]["skipped_steps"] == 1);
    const auto skipped = job.weights();
    job.good("train", ranks + bad.options(bad.bad, 5, "--overwrite --set train.skip_steps=3"));
    CHECK(job.weights() == skipped);
    job.good("train", ranks + bad.options(bad.without, 4, "--overwrite"));
    CHECK(job.weights() == skipped);
  }
}

TEST_CASE("weights that are not finite do not replace a checkpoint") {
  const TrainingJob job;
  const auto first = job.good("train",
                              "--set train.checkpoint_every=1 --set train.keep_checkpoints=1 "
                              "--set optimizer.lr=0 --set lr_schedule.min_lr=0 "
                              "--set train.steps=1");
  CHECK(first.err.find("perigee:") == std::string::npos);
  const auto refused = job.refused("train",
                                   "--resume --set train.checkpoint_every=1 --set "
                                   "train.keep_checkpoints=1 --set optimizer.lr=1e39 --set "
                                   "optimizer.clip_norm=0 --set train.steps=50",
                                   1);
  CHECK_THAT(refused, Contains("weights must be finite to be saved") && Contains("after step 2"));
  CHECK(job.checkpoints() == std::vector<int>{1});
  // The advice is followed.
  const auto ran = job.good("train", "--resume --set optimizer.lr=1e-3 --set train.steps=3");
  CHECK_THAT(ran.err + ran.out, Contains("resumed with optimizer.lr: 1e+39 became 0.001") &&
                                    Contains("resumed with train.steps: 50 became 3"));
  CHECK(job.newest_checkpoint() == 3);
}

TEST_CASE("a step that is bad twice ends with the status of a persistent fault") {
  for (const std::string ranks : {"--nproc 1 ", "--nproc 2 "}) {
    const BadBatch bad;
    const auto error = bad.job.refused(
        "train", ranks + bad.options(bad.bad, 5, "--set train.rerun=true"), 17);
    CHECK_THAT(error, Contains("also when run a second time"));
    CHECK(bad.job.newest_checkpoint() == 2);
  }
}

TEST_CASE("a rank that is stopped for seconds is named") {
  const TrainingJob job;
  Process process(job.words("train", "--nproc 2" + kLong), job.how());
  process.wait_for("step 5/");
  const auto ranks = children(process.pid());
  REQUIRE(ranks.size() == 2);
  ::kill(ranks[1], SIGSTOP);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // the stop that is to be seen
  ::kill(ranks[1], SIGCONT);
  process.wait_for("rank 1 stood still for ");
  process.signal(SIGTERM);
  CHECK(process.wait().status == 1);
  bool seen = false;
  for (const auto& line : job.metrics()) {
    if (!line.contains("pause_s")) continue;
    seen = seen || line["pause_s"][1] > 1.0;
  }
  CHECK(seen);
}

// Other work on the machine's processors slows the other rank, too, or makes up for the stops.
TEST_CASE("a rank that has 65% of its processor is named within 20 steps", "[.long]") {
  const TrainingJob job("kind = \"gpt\"\nlayers = 2\nwidth = 128\nheads = 4\n");
  auto how = job.how();
  how.seconds = 120;
  // A step takes 20 ms and more.
  Process process(
      job.words("train", "--nproc 2 --set data.sequence=64 --set batch.global=16" + kLong), how);
  process.wait_for("step 60/");
  const auto ranks = children(process.pid());
  REQUIRE(ranks.size() == 2);
  const auto last_step = [&]() -> int64_t { return job.metrics().back()["step"]; };
  const auto first = last_step() + 1;
  {
    const DutyCycle slow(ranks[1]);
    process.wait_for("rank 1 computes ");
  }
  const auto last = last_step();
  process.wait_for("rank 1 is as fast as its peers again");
  process.signal(SIGTERM);
  const auto ran = process.wait();
  INFO(ran.err);
  CHECK(ran.status == 1);
  const auto named = ran.err.find("rank 1 computes ");
  CHECK(step_before(ran.err, named) >= first);
  CHECK(step_before(ran.err, named) <= first + 20);
  CHECK(step_before(ran.err, ran.err.find("as fast as its peers", named)) >= last);
  CHECK(double(job.metrics()[size_t(first)]["step_s"]) >= 0.02);
}
