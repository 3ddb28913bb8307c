// kill -9 of a training run, at any moment.
#include <signal.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <random>
#include <thread>

#include "tests/command/job.h"
#include "tests/command/support.h"

using namespace perigee::test;
using Catch::Matchers::Contains;
namespace fs = std::filesystem;

namespace {

constexpr int kEvery = 2;  // steps from one checkpoint to the next

// A run that is killed and resumed repeatedly.
class Chain {
 public:
  Chain(int ranks, unsigned seed) : ranks_(ranks), random_(seed) {}

  std::string options(int steps, int checkpoint_every = kEvery) const {
    return "--nproc " + std::to_string(ranks_) +
           " --set model.layers=1 --set model.width=16 --set model.dropout=0.1 --set "
           "data.sequence=8 --set batch.global=2 --set train.log_every=1000000 --set "
           "train.checkpoint_every=" +
           std::to_string(checkpoint_every) + " --set train.steps=" + std::to_string(steps);
  }

  // The first checkpoint, and the seconds from the start of the command to the first step.
  void begin() {
    job.good("train", options(kEvery));
    const double begin = now();
    job.good("train", options(kEvery + 1) + " --resume");
    start_ = now() - begin;
    kept_ = job.newest_checkpoint();
  }

  // Resumes the run, kills it, and checks the files. Returns the first error, or "".
  // Not a Catch2 assertion: chains have threads of their own.
  std::string kill_once() {
    Process process(job.words("train", options(1'000'000) + " --resume"), job.how());
    // Half of the kills are during start-up, the others during the first steps and checkpoints.
    const bool in_start = draw() < 0.5;
    if (!in_start) process.wait_for("step ");
    std::this_thread::sleep_for(std::chrono::duration<double>(draw() * (in_start ? start_ : 0.1)));
    auto victims = children(process.pid());  // a rank, or the command
    victims.push_back(process.pid());
    const auto victim = victims[static_cast<size_t>(draw() * double(victims.size()))];
    ::kill(victim, SIGKILL);
    const auto ran = process.wait();
    const auto steps = job.losses();
    const int last = static_cast<int>(steps.size()), newest = job.newest_checkpoint();
    std::string wrong;
    if (ran.status != (victim == process.pid() ? -SIGKILL : 1)) wrong = "the status is another";
    if (newest < kept_) wrong = "a checkpoint is lost";
    if (lost(last, newest)) wrong = "steps are lost that a checkpoint should hold";
    if (!wrong.empty()) {
      wrong += ": kept " + std::to_string(kept_) + ", newest " + std::to_string(newest) +
               ", last step " + std::to_string(last) + ", status " + std::to_string(ran.status) +
               "; it wrote:\n" + ran.err;
    }
    kept_ = newest;
    return wrong;
  }

  // Returns whether a kill after step `last` loses more than the work since the last checkpoint
  // that was complete when the next one began: the newest may still be written.
  static bool lost(int last, int newest) { return last < newest || last - newest > 2 * kEvery; }

  int kept() const { return kept_; }

  TrainingJob job;

 private:
  double draw() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  int ranks_;
  std::mt19937 random_;
  double start_ = 0;
  int kept_ = 0;
};

}  // namespace

TEST_CASE(
    "kill -9 at 50 random moments loses at most the work since the last complete checkpoint") {
  const auto seed = Catch::rngSeed() ? Catch::rngSeed() : std::random_device()();
  INFO("seed " << seed << ", repeated with --rng-seed " << seed);
  std::vector<std::unique_ptr<Chain>> chains;
  for (const int ranks : {1, 2}) chains.push_back(std::make_unique<Chain>(ranks, seed + ranks));
  for (const auto& chain : chains) chain->begin();
  std::vector<std::string> wrong(chains.size());
  std::vector<std::thread> threads;
  for (size_t c = 0; c < chains.size(); ++c) {
    threads.emplace_back([&, c] {
      try {
        for (int kill = 0; kill < 25 && wrong[c].empty(); ++kill) wrong[c] = chains[c]->kill_once();
      } catch (const std::exception& error) {
        wrong[c] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& text : wrong) REQUIRE(text == "");
  for (const auto& chain : chains) {
    CHECK(chain->kept() > 2 * kEvery);  // some kills interrupted work
    const TrainingJob whole;
    chain->job.good("train", chain->options(chain->kept() + 3) + " --resume");
    whole.good("train", chain->options(chain->kept() + 3, 0));
    CHECK(chain->job.losses() == whole.losses());
    CHECK(chain->job.weights() == whole.weights());
  }
}

TEST_CASE("a checkpoint without COMPLETE is not used") {
  Chain chain(2, 0);
  chain.begin();
  const auto& job = chain.job;
  REQUIRE(job.checkpoints() == std::vector<int>{2, 3});
  fs::remove(job.output() + "/checkpoints/step-3/COMPLETE");
  CHECK(job.newest_checkpoint() == 2);
  const auto ran = job.good("train", chain.options(6) + " --resume");
  CHECK_THAT(ran.err, Contains("step-3") && Contains("step 3/6"));
  CHECK_THAT(read(job.output() + "/log.txt"), Contains("warning: ") && Contains("step-3"));
  // The error that the test above checks for can be detected.
  for (const int step : job.checkpoints()) {
    fs::remove(job.output() + "/checkpoints/step-" + std::to_string(step) + "/COMPLETE");
  }
  CHECK(Chain::lost(static_cast<int>(job.losses().size()), job.newest_checkpoint()));
}
