// The cost of checkpoints that are written while training goes on: steps of a GPT of 30 million
// parameters (348 MB of weights and optimizer state) on one CPU rank, with a checkpoint after every
// tenth step. A step's time is step_s and, where it has a checkpoint, checkpoint_s of the metrics:
// rank 0 copies its tensors then, and writes them during the steps that follow. Leaves with 1 where
// the losses differ from those of a run without checkpoints, or the goal is missed.
//
// Usage: bench_checkpoint [STEPS], default 64.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "tools/bench/command.h"
#include "tools/bench/jobs.h"
#include "tools/bench/median.h"

namespace {

using perigee::bench::median;

using nlohmann::json;

constexpr double kGoal = 1.15;
constexpr int kEvery = 10, kWarm = 4, kAfter = 3;  // kAfter: steps in which the thread may write

constexpr std::string_view kModel = R"([model]
kind = "gpt"
layers = 4
width = 768
heads = 12
vocab = 1200
[data]
synthetic = true
sequence = 64
)";

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

std::vector<json> steps_of(const std::string& file) {
  std::vector<json> steps;
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    auto value = json::parse(line);
    if (value.contains("step")) steps.push_back(std::move(value));
  }
  return steps;
}

std::vector<double> losses_of(const std::vector<json>& steps) {
  std::vector<double> losses;
  for (const auto& step : steps) losses.push_back(step["loss"]);
  return losses;
}

}  // namespace

int main(int argc, char** argv) {
  const int steps = argc > 1 ? std::max(3 * kEvery, std::atoi(argv[1])) : 64;
  const perigee::bench::Command command("bench-checkpoint");
  const auto job = command.write("job.toml", perigee::bench::job(kModel, steps));
  const auto output = std::filesystem::path(job).parent_path() / "run";
  const auto train = [&](int every) {
    command.run(
        fmt::format("train {} --overwrite --set train.output={} --set batch.global=4 --set "
                    "train.checkpoint_every={} --set train.keep_checkpoints=1",
                    job, output.string(), every));
    return steps_of(output / "metrics.jsonl");
  };
  const auto without = train(0), with = train(kEvery);
  std::vector<double> beside, copying, other, all, all_without;
  for (const auto& step : without) {
    if (step["step"] > kWarm && step["step"] < steps) all_without.push_back(step["step_s"]);
  }
  for (const auto& step : with) {
    const int number = step["step"];
    if (number <= kWarm || number == steps) continue;
    const double blocked = step.value("checkpoint_s", 0.0), seconds = step["step_s"];
    all.push_back(seconds + blocked);
    const int since = number % kEvery;
    if (step.contains("checkpoint_s")) {
      copying.push_back(seconds + blocked);
    } else if (number > kEvery && since <= kAfter) {
      beside.push_back(seconds);
    } else {
      other.push_back(seconds);
    }
  }
  const bool equal = losses_of(with) == losses_of(without);
  const double plain = median(other), ratio = median(copying) / plain;
  const auto print = [&](const char* name, double seconds) {
    fmt::print("{:<44} {:7.1f} ms  {:.3f}\n", name, 1e3 * seconds, seconds / plain);
  };
  print("a step without a checkpoint (median)", plain);
  print("a step with a checkpoint (median)", median(copying));
  print("a step while one is written (median)", median(beside));
  print("all steps (mean)", mean(all));
  print("all steps of a run without checkpoints (mean)", mean(all_without));
  fmt::print("losses {}; goal: a step with a checkpoint at most {} of one without: {}\n",
             equal ? "are equal" : "DIFFER", kGoal, ratio <= kGoal ? "met" : "MISSED");
  return equal && ratio <= kGoal ? 0 : 1;
}
