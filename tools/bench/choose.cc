// Trains the plan that `auto` chooses on two ranks of this machine's CPU after `perigee profile`,
// the ten next-best plans of the search's model and ten random plans of its space. Exits with 1 if
// the chosen plan's median step exceeds the fastest one's by more than the sum of both spreads
// (interquartile ranges).
//
// Usage: bench_choose [SEED].
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tools/bench/command.h"
#include "tools/bench/jobs.h"

namespace {

using nlohmann::json;
using perigee::bench::Command;

constexpr int kSteps = 16, kWarm = 4, kRounds = 2, kNext = 10, kRandom = 10;

const char* const kCandidate = R"(-- The K-th best of the space, by the search's model.
return function()
  local list = assert(require("perigee.solver").candidates({{}}, 100000))
  local candidate = list[{}] or error("there are " .. #list .. " candidates", 0)
  return candidate.strategy
end
)";

struct Plan {
  std::string what, text;  // the plan file
  double predicted = 0;    // seconds
  std::vector<double> seconds;
  double quantile(double share) const {
    return seconds[static_cast<size_t>(share * static_cast<double>(seconds.size() - 1))];
  }
};

// Returns a plan without its decisions and its prediction.
json executed_part(const std::string& text) {
  auto plan = json::parse(text);
  plan.erase("decisions");
  plan.erase("prediction");
  return plan;
}

// Profiles the job and returns the chosen plan.
std::string choose(const Command& command, const std::string& job) {
  fmt::print("{}", command.run("profile " + job + " --nproc 2"));
  return command.run("plan " + job + " --nproc 2 --strategy auto");
}

// Returns the output of planning the k-th candidate, counted from 1: its plan if `status` is 0.
std::string candidate(const Command& command, const std::string& job, size_t k, int& status) {
  const auto script = command.write("candidate.lua", fmt::format(fmt::runtime(kCandidate), k));
  return command.run(fmt::format("plan {} --nproc 2 --strategy {}", job, script), &status);
}

// Returns the number of candidates.
size_t count(const Command& command, const std::string& job) {
  int status = 0;
  const auto output = candidate(command, job, 1000000, status);
  const std::string before = "there are ";
  const auto at = output.find(before);
  if (at == std::string::npos) {
    fmt::print(stderr, "{}", output);
    std::exit(1);
  }
  return std::stoul(output.substr(at + before.size()));
}

std::vector<Plan> draw(const Command& command, const std::string& job, std::mt19937_64& random) {
  std::vector<Plan> plans{{.what = "chosen", .text = choose(command, job)}};
  std::vector<json> known{executed_part(plans[0].text)};
  // Adds the candidate if it compiles and is a new plan. Returns the number of added plans.
  const auto add = [&](const std::string& what, size_t k) {
    int status = 0;
    auto text = candidate(command, job, k, status);
    if (status != 0) return 0;
    auto plan = executed_part(text);
    if (std::find(known.begin(), known.end(), plan) != known.end()) return 0;
    known.push_back(std::move(plan));
    plans.push_back({.what = fmt::format("{} ({})", what, k), .text = std::move(text)});
    return 1;
  };
  const size_t all = count(command, job);
  size_t k = 1;
  for (int found = 0; found < kNext && k <= all; ++k) found += add("next", k);
  for (int found = 0, tries = 0; found < kRandom && tries < 100 && k <= all; ++tries) {
    found += add("random", k + random() % (all - k + 1));
  }
  return plans;
}

}  // namespace

int main(int argc, char** argv) {
  std::mt19937_64 random(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1);
  const Command command("choose");
  const auto job = command.write("job.toml",
                                 perigee::bench::job(perigee::bench::kSmallGpt, kSteps));
  auto plans = draw(command, job, random);
  for (auto& plan : plans) {
    const auto file = command.write("plan.json", plan.text);
    const auto about = fmt::format("simulate {} --nproc 2 --plan {} --json", job, file);
    plan.predicted = json::parse(command.run(about))["step_seconds"];
  }
  for (int round = 0; round < kRounds; ++round) {
    for (auto& plan : plans) {
      const auto file = command.write("plan.json", plan.text);
      command.train(fmt::format("{} --nproc 2 --plan {}", job, file), kWarm, plan.seconds);
    }
  }
  for (auto& plan : plans) std::sort(plan.seconds.begin(), plan.seconds.end());
  fmt::print("{:>14} {:>10} {:>10} {:>18}\n", "plan", "predicted", "measured", "spread");
  for (const auto& plan : plans) {
    fmt::print("{:>14} {:>7.1f} ms {:>7.1f} ms {:>7.1f} to {:.1f}\n", plan.what,
               1e3 * plan.predicted, 1e3 * plan.quantile(0.5), 1e3 * plan.quantile(0.25),
               1e3 * plan.quantile(0.75));
  }
  const auto& chosen = plans[0];
  const auto& fastest = *std::min_element(
      plans.begin(), plans.end(),
      [](const Plan& a, const Plan& b) { return a.quantile(0.5) < b.quantile(0.5); });
  const auto spread = [](const Plan& plan) { return plan.quantile(0.75) - plan.quantile(0.25); };
  const double excess_seconds = chosen.quantile(0.5) - fastest.quantile(0.5);
  fmt::print("{} plans: the chosen one takes {:.3f} of the fastest ({}), {} the spread\n",
             plans.size(), chosen.quantile(0.5) / fastest.quantile(0.5), fastest.what,
             excess_seconds <= spread(chosen) + spread(fastest) ? "within" : "beyond");
  return excess_seconds <= spread(chosen) + spread(fastest) ? 0 : 1;
}
