#include "solve/evaluate.h"

#include <algorithm>
#include <functional>
#include <map>
#include <vector>

#include "base/fail.h"

namespace perigee::solve {

double Peak::total() const {
  return std::max(resident + std::max(saved, optimizer) + transient + group, moment);
}

Peak peak_memory(const AssignProblem& problem, std::span<const int> choice) {
  Peak peak;
  std::vector<double> transients;
  std::map<std::string, double> groups;
  for (size_t i = 0; i < problem.ops.size(); ++i) {
    const auto& op = problem.ops[i];
    const auto& option = op.options[choice[i]];
    peak.resident += option.resident;
    peak.optimizer += option.optimizer;
    transients.push_back(option.transient);
    if (op.group.empty()) {
      peak.saved += option.saved;
    } else {
      groups[op.group] += option.saved;
      if (op.group_input) peak.saved += option.input;
    }
  }
  std::sort(transients.begin(), transients.end(), std::greater<>());
  const auto count = std::min<size_t>(problem.transient_count, transients.size());
  for (size_t i = 0; i < count; ++i) peak.transient += transients[i];
  for (const auto& [name, saved] : groups) peak.group = std::max(peak.group, saved);
  for (size_t m = 0; m < problem.moments.size(); ++m) {
    double live = 0;
    for (int i : problem.moments[m]) live += problem.ops[i].options[choice[i]].live;
    if (peak.moment_index < 0 || live > peak.moment) {
      peak.moment = live;
      peak.moment_index = static_cast<int>(m);
    }
  }
  return peak;
}

Evaluation evaluate(const AssignProblem& problem, std::span<const int> choice) {
  if (choice.size() != problem.ops.size()) {
    fail("solve", "a choice names one option for each of {} ops, but got {}", problem.ops.size(),
         choice.size());
  }
  Evaluation result;
  auto broken = [&](std::string why) {
    result.allowed = false;
    if (result.why.empty()) result.why = std::move(why);
  };
  for (size_t i = 0; i < choice.size(); ++i) {
    const auto& op = problem.ops[i];
    if (choice[i] < 0 || choice[i] >= static_cast<int>(op.options.size())) {
      fail("solve", "ops[{}] has {} options, but got option {}", i, op.options.size(), choice[i]);
    }
    if (op.follows >= 0 && choice[i] != choice[op.follows]) {
      broken(fmt::format("ops[{}] follows ops[{}] but takes another option", i, op.follows));
    }
    result.time += op.options[choice[i]].time;
  }
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const auto& edge = problem.edges[e];
    const size_t width = problem.ops[edge.to].options.size();
    const double time = edge.time[choice[edge.from] * width + choice[edge.to]];
    if (time == std::numeric_limits<double>::infinity()) {
      broken(fmt::format("edges[{}] forbids options {} and {}", e, choice[edge.from],
                         choice[edge.to]));
    }
    result.time += time;
  }
  result.memory = peak_memory(problem, choice).total();
  if (problem.memory_limit && result.memory > *problem.memory_limit * (1 + kTolerance)) {
    broken(fmt::format("peak memory {} is above memory_limit {}", result.memory,
                       *problem.memory_limit));
  }
  return result;
}

Evaluation evaluate(const StagesProblem& problem, std::span<const int> choice) {
  Evaluation result;
  auto broken = [&](std::string why) {
    result.allowed = false;
    if (result.why.empty()) result.why = std::move(why);
  };
  int next_layer = 0;
  int64_t devices = 0;
  double longest = 0;
  for (size_t i = 0; i < choice.size(); ++i) {
    if (choice[i] < 0 || choice[i] >= static_cast<int>(problem.candidates.size())) {
      fail("solve", "there are {} candidates, but got candidate {}", problem.candidates.size(),
           choice[i]);
    }
    const auto& candidate = problem.candidates[choice[i]];
    const auto& submesh = problem.submeshes[candidate.submesh];
    if (candidate.first != next_layer) {
      broken(fmt::format("stage {} starts at layer {}, not {}", i, candidate.first, next_layer));
    }
    next_layer = candidate.last + 1;
    devices += submesh.hosts * submesh.devices_per_host;
    result.time += candidate.time;
    longest = std::max(longest, candidate.time);
    const auto successors = static_cast<int64_t>(choice.size() - i - 1);
    if (candidate.max_successors && *candidate.max_successors < successors) {
      broken(fmt::format("candidate {} has {} stages after it, more than max_successors {}",
                         choice[i], successors, *candidate.max_successors));
    }
  }
  result.time += static_cast<double>(problem.microbatches - 1) * longest;
  if (next_layer != problem.layers) {
    broken(fmt::format("the stages end at layer {} of {}", next_layer, problem.layers));
  }
  if (devices != problem.devices) {
    broken(fmt::format("the stages use {} devices, not {}", devices, problem.devices));
  }
  return result;
}

Evaluation evaluate(const Problem& problem, std::span<const int> choice) {
  return std::visit([&](const auto& kind) { return evaluate(kind, choice); }, problem);
}

}  // namespace perigee::solve
