// Results as JSON and as text.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "solve/problem.h"

namespace perigee::solve {
namespace {

const char* name(Verdict verdict) {
  switch (verdict) {
    case Verdict::optimal:
      return "optimal";
    case Verdict::feasible:
      return "feasible";
    case Verdict::unknown:
      return "unknown";
    case Verdict::infeasible:
      break;
  }
  return "infeasible";
}

std::string describe(const AssignProblem& problem, const std::vector<int>& choice) {
  std::string text = "options:";
  for (size_t i = 0; i < choice.size(); ++i) {
    const auto& op = problem.ops[i];
    text += fmt::format(" {}={}", op.name.empty() ? fmt::format("ops[{}]", i) : op.name, choice[i]);
  }
  return text + "\n";
}

std::string describe(const StagesProblem& problem, const std::vector<int>& choice) {
  std::string text;
  for (size_t i = 0; i < choice.size(); ++i) {
    const auto& candidate = problem.candidates[choice[i]];
    const auto& mesh = problem.submeshes[candidate.submesh];
    text += fmt::format("stage {}: layers {}-{} on {}x{} devices, time {} (candidate {})\n", i,
                        candidate.first, candidate.last, mesh.hosts, mesh.devices_per_host,
                        candidate.time, choice[i]);
  }
  return text;
}

}  // namespace

std::string to_json(const Result& result) {
  nlohmann::ordered_json json;
  json["format"] = "perigee.result/1";
  json["status"] = name(result.verdict);
  if (result.verdict == Verdict::infeasible) {
    json["reason"] = result.reason;
  } else {
    json["time"] = result.time;
    json["lower_bound"] = result.lower_bound;
    json["memory"] = result.memory;
    json["choice"] = result.choice;
  }
  json["solver"] = result.solver;
  json["seconds"] = result.seconds;
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string to_text(const Result& result, const Problem& problem) {
  std::string text = fmt::format("{} (solver {}, {:.4f} s)\n", name(result.verdict), result.solver,
                                 result.seconds);
  if (result.verdict == Verdict::infeasible) return text + result.reason + "\n";
  text += fmt::format("time {}, lower bound {}", result.time, result.lower_bound);
  if (result.verdict == Verdict::feasible && result.time > 0) {
    text += fmt::format(" (gap {:.3g}%)", 100 * (result.time - result.lower_bound) / result.time);
  }
  if (std::holds_alternative<AssignProblem>(problem))
    text += fmt::format(", memory {}", result.memory);
  text += "\n";
  return text +
         std::visit([&](const auto& kind) { return describe(kind, result.choice); }, problem);
}

}  // namespace perigee::solve
