#include "solve/problem.h"

#include <cmath>
#include <limits>
#include <set>

#include "base/fail.h"

namespace perigee::solve {
namespace {

void check_number(double value, const std::string& path) {
  if (!std::isfinite(value) || value < 0) {
    fail("solve", "{} must be a finite number >= 0, but got {}", path, value);
  }
  if (value > kLargestNumber) {
    fail("solve", "{} must be at most {}, but got {}; count in a larger unit", path, kLargestNumber,
         value);
  }
}

void check_index(int64_t value, size_t count, const std::string& path) {
  if (value < 0 || value >= static_cast<int64_t>(count)) {
    fail("solve", "{} must be between 0 and {}, but got {}", path, static_cast<int64_t>(count) - 1,
         value);
  }
}

void check_option(const AssignOption& option, size_t op, size_t index) {
  auto check = [&](double value, const char* key) {
    if (!(value >= 0 && value <= kLargestNumber)) {
      check_number(value, fmt::format("ops[{}].options[{}].{}", op, index, key));
    }
  };
  check(option.time, "time");
  check(option.resident, "resident");
  check(option.saved, "saved");
  check(option.optimizer, "optimizer");
  check(option.transient, "transient");
  check(option.input, "input");
  check(option.live, "live");
}

void check_edge(const AssignProblem& problem, size_t e) {
  const auto& edge = problem.edges[e];
  const auto path = fmt::format("edges[{}]", e);
  check_index(edge.from, problem.ops.size(), path + ".from");
  check_index(edge.to, problem.ops.size(), path + ".to");
  if (edge.from == edge.to) {
    fail("solve", "{} must join two different ops, but got {} twice", path, edge.from);
  }
  const size_t width = problem.ops[edge.to].options.size();
  const size_t size = problem.ops[edge.from].options.size() * width;
  if (edge.time.size() != size) {
    fail("solve", "{}.time must have {} values, but got {}", path, size, edge.time.size());
  }
  for (size_t k = 0; k < size; ++k) {
    const double time = edge.time[k];
    if (time == std::numeric_limits<double>::infinity()) continue;
    if (!(time >= 0 && time <= kLargestNumber))
      check_number(time, fmt::format("{}.time[{}][{}]", path, k / width, k % width));
  }
}

void check(const AssignProblem& problem) {
  if (problem.memory_limit) check_number(*problem.memory_limit, "memory_limit");
  if (problem.transient_count < 0) {
    fail("solve", "transient_count must be >= 0, but got {}", problem.transient_count);
  }
  for (size_t i = 0; i < problem.ops.size(); ++i) {
    const auto& op = problem.ops[i];
    if (op.options.empty()) fail("solve", "ops[{}].options must have at least one option", i);
    for (size_t j = 0; j < op.options.size(); ++j) check_option(op.options[j], i, j);
    if (op.follows < 0) continue;
    check_index(op.follows, i, fmt::format("ops[{}].follows", i));
    if (const auto count = problem.ops[op.follows].options.size(); count != op.options.size()) {
      fail("solve",
           "ops[{}] must have as many options as ops[{}], which it follows ({}), but got {}", i,
           op.follows, count, op.options.size());
    }
  }
  for (size_t e = 0; e < problem.edges.size(); ++e) check_edge(problem, e);
  for (size_t m = 0; m < problem.moments.size(); ++m) {
    std::set<int> seen;
    for (int i : problem.moments[m]) {
      check_index(i, problem.ops.size(), fmt::format("moments[{}]", m));
      if (!seen.insert(i).second)
        fail("solve", "moments[{}] must list an op once, but got {} twice", m, i);
    }
  }
}

void check(const StagesProblem& problem) {
  constexpr int kMostLayers = 1'000'000;  // arrays by layer are allocated before a search
  if (problem.layers < 1) fail("solve", "layers must be >= 1, but got {}", problem.layers);
  if (problem.layers > kMostLayers) {
    fail("solve", "layers must be at most {}, but got {}", kMostLayers, problem.layers);
  }
  if (problem.devices < 1) fail("solve", "devices must be >= 1, but got {}", problem.devices);
  if (problem.microbatches < 1) {
    fail("solve", "microbatches must be >= 1, but got {}", problem.microbatches);
  }
  for (size_t i = 0; i < problem.submeshes.size(); ++i) {
    const auto& mesh = problem.submeshes[i];
    if (mesh.hosts < 1 || mesh.devices_per_host < 1 || mesh.hosts > INT32_MAX ||
        mesh.devices_per_host > INT32_MAX) {
      fail("solve", "submeshes[{}] must be [hosts, devices per host], both >= 1, but got [{},{}]",
           i, mesh.hosts, mesh.devices_per_host);
    }
  }
  for (size_t i = 0; i < problem.candidates.size(); ++i) {
    const auto& candidate = problem.candidates[i];
    const auto path = fmt::format("candidates[{}]", i);
    check_index(candidate.first, problem.layers, path + ".first");
    check_index(candidate.last, problem.layers, path + ".last");
    if (candidate.last < candidate.first) {
      fail("solve", "{}.last must be >= first ({}), but got {}", path, candidate.first,
           candidate.last);
    }
    check_index(candidate.submesh, problem.submeshes.size(), path + ".submesh");
    check_number(candidate.time, path + ".time");
    if (candidate.max_successors && *candidate.max_successors < 0) {
      fail("solve", "{}.max_successors must be >= 0, but got {}", path, *candidate.max_successors);
    }
  }
}

}  // namespace

void check_problem(const Problem& problem) {
  std::visit([](const auto& kind) { check(kind); }, problem);
}

}  // namespace perigee::solve
