#include "solve/why_not.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/error.h"
#include "solve/assign/assign.h"
#include "solve/evaluate.h"
#include "solve/stages_search.h"

namespace perigee::solve {
namespace {

constexpr double kForbiddenPair = std::numeric_limits<double>::infinity();

std::string op_name(const AssignProblem& problem, int i) {
  const auto& name = problem.ops[i].name;
  return name.empty() ? fmt::format("ops[{}]", i) : fmt::format("\"{}\"", name);
}

std::string describe(const AssignProblem& problem, const Peak& peak) {
  if (peak.moment >= peak.total())
    return fmt::format("moments[{}] alone holds {}", peak.moment_index, peak.moment);
  std::string terms = fmt::format("resident {}", peak.resident);
  terms += peak.saved >= peak.optimizer ? fmt::format(" + saved {}", peak.saved)
                                        : fmt::format(" + optimizer {}", peak.optimizer);
  if (problem.transient_count > 0 && peak.transient > 0)
    terms += fmt::format(" + transient {}", peak.transient);
  if (peak.group > 0) terms += fmt::format(" + largest group {}", peak.group);
  return terms;
}

// The memory limit excludes every choice: finds the least peak by bisection with exact decisions.
std::string why_memory(const AssignProblem& problem, std::vector<int> choice, Deadline deadline) {
  double most = peak_memory(problem, choice).total();
  double least = *problem.memory_limit;
  bool exact = true;
  AssignProblem raised = problem;
  while (most - least > 1e-9 * most) {
    if (std::chrono::steady_clock::now() > deadline) {
      exact = false;
      break;
    }
    raised.memory_limit = least + (most - least) / 2;
    const auto outcome = assign_by_labels(raised, {.deadline = deadline, .any = true});
    if (outcome.choice) {
      choice = *outcome.choice;
      most = std::min(*raised.memory_limit, peak_memory(problem, choice).total());
    } else if (outcome.finished) {
      least = *raised.memory_limit;
    } else {
      exact = false;
      break;
    }
  }
  const double limit = *problem.memory_limit;
  const Peak peak = peak_memory(problem, choice);
  return fmt::format(
      "memory_limit {} is too small: the least peak memory of any choice is {}{:.10g}, {:.10g} "
      "more ({})",
      limit, exact ? "" : "at most ", peak.total(), peak.total() - limit, describe(problem, peak));
}

// Forbidden pairs exclude every choice: names a smallest set of forbidden pairs that a choice
// needs, within the memory limit if there is one, and the missing memory.
std::string why_forbidden(const AssignProblem& problem, Deadline deadline) {
  AssignProblem counted = problem;
  for (auto& op : counted.ops) {
    for (auto& option : op.options) option.time = 0;
  }
  for (auto& edge : counted.edges) {
    for (auto& time : edge.time) time = time == kForbiddenPair ? 1 : 0;
  }
  auto outcome = assign_by_labels(counted, {.deadline = deadline});
  const bool fits = outcome.choice.has_value();
  if (!fits) {
    counted.memory_limit.reset();
    outcome = assign_by_labels(counted, {.deadline = deadline});
  }
  std::string reason = "every choice takes a pair of options that an edge forbids (null)";
  if (!outcome.choice) return reason;
  const auto& choice = *outcome.choice;
  AssignProblem allowed = problem;
  std::string edges;
  int taken = 0;
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    const auto& edge = problem.edges[e];
    const size_t pair = choice[edge.from] * problem.ops[edge.to].options.size() + choice[edge.to];
    if (edge.time[pair] != kForbiddenPair) continue;
    allowed.edges[e].time[pair] = 0;
    if (++taken <= 3) {
      edges += fmt::format("{}edges[{}] ({} to {}) would have to allow [{}][{}]",
                           taken > 1 ? ", " : "", e, op_name(problem, edge.from),
                           op_name(problem, edge.to), choice[edge.from], choice[edge.to]);
    }
  }
  reason = fmt::format("{}: {} {}; allow one choice and {}{}", reason,
                       outcome.finished ? "at least" : "up to", taken, edges,
                       taken > 3 ? ", ..." : "");
  return fits ? reason : fmt::format("{}; then {}", reason, why_memory(allowed, choice, deadline));
}

// Returns the device totals of sequences that cover all layers, successors ignored, up to the
// smallest above the wanted one.
std::set<int64_t> device_totals(const StagesProblem& problem) {
  std::vector<std::set<int64_t>> totals(problem.layers + 1);
  totals[0].insert(0);
  std::vector<StageCandidate> candidates = problem.candidates;
  std::sort(candidates.begin(), candidates.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& c : candidates) {
    const auto& mesh = problem.submeshes[c.submesh];
    for (const int64_t total : totals[c.first]) {
      // Of totals above the wanted one only the least matters; it extends the least preceding one.
      auto& to = totals[c.last + 1];
      const int64_t sum = total + mesh.hosts * mesh.devices_per_host;
      if (sum <= problem.devices || to.empty() || *to.rbegin() <= problem.devices) {
        to.insert(sum);
      } else if (sum < *to.rbegin()) {
        to.erase(std::prev(to.end()));
        to.insert(sum);
      }
    }
  }
  return totals[problem.layers];
}

// Returns whether a sequence uses exactly so many devices, and its stages have no more after them
// than they allow.
bool possible(StagesProblem problem, int64_t devices, Deadline deadline) {
  problem.devices = devices;
  return stages_by_search(problem, deadline).choice.has_value();
}

// No sequence uses exactly the given number of devices: names the nearest numbers for which
// one exists.
std::string why_devices(const StagesProblem& problem, const std::set<int64_t>& totals,
                        Deadline deadline) {
  const auto above = totals.upper_bound(problem.devices);
  std::vector<std::string> near;
  for (auto below = above; below != totals.begin();) {
    if (!possible(problem, *--below, deadline)) continue;
    near.push_back(fmt::format("{} ({} fewer)", *below, problem.devices - *below));
    break;
  }
  if (above != totals.end() && possible(problem, *above, deadline))
    near.push_back(fmt::format("{} ({} more)", *above, *above - problem.devices));
  if (near.empty()) {
    const int64_t nearest = above != totals.begin() ? *std::prev(above) : *above;
    return fmt::format(
        "devices {}: no sequence of candidates uses exactly that many; those of {} or another "
        "number have a stage with more stages after it than its max_successors",
        problem.devices, nearest);
  }
  return fmt::format(
      "devices {}: no sequence of candidates uses exactly that many; the nearest use {}",
      problem.devices, fmt::join(near, " or "));
}

}  // namespace

std::string why_infeasible(const AssignProblem& problem, Deadline deadline) {
  AssignProblem unlimited = problem;
  unlimited.memory_limit.reset();
  const auto outcome = assign_by_labels(unlimited, {.deadline = deadline, .any = true});
  if (!outcome.choice) return why_forbidden(problem, deadline);
  if (!problem.memory_limit) return "no choice satisfies the constraints";
  return why_memory(problem, *outcome.choice, deadline);
}

std::string why_infeasible(const StagesProblem& problem, Deadline deadline) {
  std::vector<bool> reached(problem.layers + 1, false);
  reached[0] = true;
  for (int l = 0; l < problem.layers; ++l) {
    if (!reached[l]) continue;
    for (const auto& c : problem.candidates) {
      if (c.first == l) reached[c.last + 1] = true;
    }
  }
  if (!reached[problem.layers]) {
    int covered = problem.layers;
    while (!reached[covered]) --covered;
    const std::string most = covered > 0
                                 ? fmt::format(
                                       "layers 0..{} can be covered in order, the last {} not",
                                       covered - 1, problem.layers - covered)
                                 : "none begins at layer 0";
    return fmt::format("candidates: no sequence covers all {} layers; {}", problem.layers, most);
  }
  const auto totals = device_totals(problem);
  if (totals.count(problem.devices) == 0) return why_devices(problem, totals, deadline);
  StagesProblem relaxed = problem;
  for (int64_t more = 1; more <= problem.layers; ++more) {
    for (size_t i = 0; i < problem.candidates.size(); ++i) {
      if (const auto most = problem.candidates[i].max_successors) {
        relaxed.candidates[i].max_successors = std::min<int64_t>(*most, problem.layers) + more;
      }
    }
    const auto outcome = stages_by_search(relaxed, deadline);
    if (!outcome.choice) continue;
    return fmt::format(
        "max_successors: every sequence that fits has a stage with more stages after it than it "
        "allows, by at least "
        "{}",
        more);
  }
  return "max_successors: every sequence that fits has a stage with more stages after it than it "
         "allows";
}

}  // namespace perigee::solve
