// Predicted against measured step times: random plans of three models on one and two ranks of this
// machine's CPU. Each plan is trained, profiled (`perigee profile`), trained once more and
// simulated. The error is relative to the median step of both runs. Exits with 1 if an error
// exceeds 5% plus the spread of the steps (interquartile range).
//
// Usage: bench_predict [PLANS] [SEED]. Runs the command like a user, with a profile in a
// temporary folder.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/command.h"
#include "tools/bench/jobs.h"

namespace {

constexpr int kSteps = 24, kWarm = 4;

struct Model {
  std::string_view name, text;
};

constexpr std::string_view kLlama = R"([model]
kind = "llama"
layers = 4
width = 192
heads = 4
[data]
synthetic = true
sequence = 128
)";

constexpr std::string_view kMlp = R"([model]
kind = "mlp"
layers = 4
width = 1024
[data]
synthetic = true
)";

constexpr std::array<Model, 3> kModels = {
    {{"gpt", perigee::bench::kSmallGpt}, {"llama", kLlama}, {"mlp", kMlp}}};

struct Case {
  std::string model, text, strategy;
  int ranks = 1;
};

// Draws a strategy that is valid for every model.
Case draw(std::mt19937_64& random) {
  const auto& model = kModels[random() % kModels.size()];
  Case drawn{std::string(model.name), std::string(model.text), "",
             static_cast<int>(random() % 2) + 1};
  const auto pick = [&](std::initializer_list<const char*> list) {
    return std::string(list.begin()[random() % list.size()]);
  };
  const auto microbatches = pick({"1", "2", "4"});
  std::string axes = R"({"data", 1})", more;
  if (drawn.ranks == 2) {
    const auto axis = pick({"data", "tensor", "pipe"});
    axes = fmt::format(R"({{"{}", 2}})", axis);
    if (axis == "tensor") more = R"({"tensor_parallel"},)";
    if (axis == "pipe") {
      more = fmt::format("{{'pipeline_parallel', {{schedule = {}}}}},",
                         pick({"'1f1b'", "'gpipe'"}));
    }
    if (axis == "data") more = pick({"", R"({"zero1"},)", R"({"fsdp"},)"});
  }
  if (random() % 3 == 0) more += R"({"checkpoint", {"blocks.*"}},)";
  drawn.strategy = fmt::format(
      "return {{ {{\"parallel_mode\", {{ {} }}}}, {{\"gradient_accumulation\", {{microbatches = "
      "{}}}}}, "
      "{} }}\n",
      axes, microbatches, more);
  return drawn;
}

}  // namespace

int main(int argc, char** argv) {
  const int plans = argc > 1 ? std::atoi(argv[1]) : 30;
  std::mt19937_64 random(argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
  const perigee::bench::Command command("predict");
  double sum = 0, worst = 0;
  int beyond = 0;
  fmt::print("{:>8} {:>10} {:>10} {:>7} {:>7} {:>9}  plan\n", "model", "predicted", "measured",
             "error", "spread", "measured%");
  for (int i = 0; i < plans; ++i) {
    const auto drawn = draw(random);
    const auto job = command.write("job.toml", perigee::bench::job(drawn.text, kSteps));
    const auto strategy = command.write("strategy.lua", drawn.strategy);
    const auto about = fmt::format("{} --strategy {} --nproc {}", job, strategy, drawn.ranks);
    std::vector<double> seconds;
    command.train(about, kWarm, seconds);
    command.run("profile " + about);
    command.train(about, kWarm, seconds);
    std::sort(seconds.begin(), seconds.end());
    const auto result = nlohmann::json::parse(
        command.run(fmt::format("simulate {} --json", about)));
    const double median = seconds[seconds.size() / 2];
    const double spread = (seconds[seconds.size() * 3 / 4] - seconds[seconds.size() / 4]) / median;
    const double predicted = result["step_seconds"];
    const double error = predicted / median - 1;
    sum += std::abs(error);
    worst = std::max(worst, std::abs(error));
    if (std::abs(error) > 0.05 + spread) ++beyond;
    fmt::print("{:>8} {:>7.2f} ms {:>7.2f} ms {:>6.1f}% {:>6.1f}% {:>8.0f}%  {}x {}", drawn.model,
               1e3 * predicted, 1e3 * median, 100 * error, 100 * spread,
               100 * result["measured_share"].get<double>(), drawn.ranks, drawn.strategy.substr(9));
    std::fflush(stdout);
  }
  fmt::print("{} plans: mean error {:.1f}%, worst {:.1f}%; {} beyond 5% plus their spread\n", plans,
             100 * sum / plans, 100 * worst, beyond);
  return beyond > 0 ? 1 : 0;
}
