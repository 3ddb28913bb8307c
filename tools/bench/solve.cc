// Time of the exact solvers to a proven optimum: assign problems of 96 ops x 24 options with
// binding memory, transients and ties, and a 32-layer model of five ops a layer. Against CBC on the
// same tables, where CBC ends within its limit.
#include "solve/solve.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace perigee::solve;

struct Table {
  const char* name;
  int ops, options;
  bool same;   // all ops are identical
  bool whole;  // whole numbers, which give many ties
  bool edges;
  double goal;  // seconds
  bool rival;   // CBC solves it, too
};

// Faster options take more memory; the limit is midway between the least memory and that of the
// fastest choice.
AssignProblem make(const Table& table) {
  std::mt19937_64 random(17);
  auto draw = [&](double low, double high) {
    const double value = std::uniform_real_distribution<double>(low, high)(random);
    return table.whole ? std::round(value * 10) : value;
  };
  auto draw_options = [&] {
    std::vector<AssignOption> options;
    for (int j = 0; j < table.options; ++j) {
      const double size = (j + 1.0) / table.options;
      options.push_back({.time = draw(0.9, 1.1) * (1 + 9 * (1 - size) * (1 - size)),
                         .resident = draw(2, 4) * size,
                         .saved = draw(8, 12) * size,
                         .optimizer = draw(0, 10),
                         .transient = draw(2, 18) * size});
      if (table.whole) {
        auto& option = options.back();
        for (double* value : {&option.time, &option.resident, &option.saved, &option.transient})
          *value = std::round(*value);
      }
    }
    return options;
  };
  auto draw_edge = [&](int from) {
    AssignEdge edge{.from = from, .to = from + 1, .time = {}};
    for (int i = 0; i < table.options; ++i) {
      for (int j = 0; j < table.options; ++j) edge.time.push_back(i == j ? 0 : draw(0, 3));
    }
    return edge;
  };
  AssignProblem problem;
  double least = 0, fastest = 0;
  for (int i = 0; i < table.ops; ++i) {
    const auto options = table.same && i > 0 ? problem.ops[0].options : draw_options();
    problem.ops.push_back({.name = fmt::format("op{}", i), .options = options});
    auto peak = [](const AssignOption& o) { return o.resident + std::max(o.saved, o.optimizer); };
    least += peak(
        *std::min_element(options.begin(), options.end(),
                          [&](const auto& a, const auto& b) { return peak(a) < peak(b); }));
    fastest += peak(
        *std::min_element(options.begin(), options.end(),
                          [](const auto& a, const auto& b) { return a.time < b.time; }));
  }
  for (int i = 0; table.edges && i + 1 < table.ops; ++i) {
    problem.edges.push_back(table.same && i > 0 ? problem.edges[0] : draw_edge(i));
    problem.edges.back().from = i;
    problem.edges.back().to = i + 1;
  }
  problem.memory_limit = table.whole ? std::floor((least + fastest) / 2) : (least + fastest) / 2;
  return problem;
}

// A pipeline of 96 layers on 1,024 devices: all cuts into stages on powers of two of devices.
StagesProblem make_stages() {
  std::mt19937_64 random(17);
  StagesProblem problem{.layers = 96, .devices = 1024, .microbatches = 128};
  for (int64_t d = 8; d <= 1024; d *= 2)
    problem.submeshes.push_back({std::max<int64_t>(d / 8, 1), 8});
  for (int first = 0; first < 96; ++first) {
    for (int last = first; last < 96; ++last) {
      for (int m = 0; m < static_cast<int>(problem.submeshes.size()); ++m) {
        const double devices = static_cast<double>(problem.submeshes[m].hosts * 8);
        const double noise = std::uniform_real_distribution<double>(0.97, 1.03)(random);
        problem.candidates.push_back(
            {.first = first,
             .last = last,
             .submesh = m,
             .time = noise * (last - first + 1) / std::pow(devices, 0.9),
             .max_successors = static_cast<int64_t>(devices * 4 / (last - first + 1))});
      }
    }
  }
  return problem;
}

// Returns the least seconds of `runs` runs. `result`: the last result.
double measure(const Problem& problem, const Options& options, int runs, Result& result) {
  double least = 1e30;
  for (int i = 0; i < runs; ++i) {
    result = solve(problem, options);
    least = std::min(least, result.seconds);
  }
  return least;
}

bool report(const std::string& name, const Problem& problem, double goal, bool rival,
            double rival_limit) {
  Result result;
  const double seconds = measure(problem, {.solver = "labels"}, 3, result);
  bool good = result.verdict == Verdict::optimal && seconds <= goal;
  std::string line = fmt::format("{:<34} {:>9.4f} s (goal {:.2f}) time {:.6g} {}", name, seconds,
                                 goal, result.time,
                                 result.verdict == Verdict::optimal ? "proven" : "NOT PROVEN");
  if (rival) {
    Result other;
    const double taken = measure(problem, {.solver = "ilp", .time_limit = rival_limit}, 1, other);
    const bool ended = other.verdict == Verdict::optimal;
    const bool agree = !ended ? other.time >= result.time * (1 - 1e-6)
                              : std::abs(other.time - result.time) <= 1e-6 * result.time;
    line += fmt::format(", CBC {}{:.1f} s: {:.0f} times faster{}", ended ? "" : "> ", taken,
                        taken / seconds, agree ? "" : ", BUT IT DISAGREES");
    good = good && agree && taken >= 100 * seconds;
  }
  fmt::print("{}{}\n", line, good ? "" : "  <-- misses its goal");
  std::fflush(stdout);
  return good;
}

}  // namespace

// Usage: bench_solve [SECONDS]: CBC's time limit for one table, default 60.
int main(int argc, char** argv) {
  const double rival_limit = argc > 1 ? std::atof(argv[1]) : 60;
  const Table tables[] = {
      {"96 x 24, all alike, ties", 96, 24, true, true, true, 0.25, false},
      {"96 x 24, all alike, reals", 96, 24, true, false, true, 0.25, false},
      {"96 x 24, all alike, no edges", 96, 24, true, false, false, 0.25, false},
      {"96 x 24, all different, ties", 96, 24, false, true, true, 0.25, false},
      {"96 x 24, all different, reals", 96, 24, false, false, true, 0.25, true},
      {"96 x 24, all different, no edges", 96, 24, false, false, false, 0.25, false},
      {"32 layers x 5 ops x 5, different", 160, 5, false, false, true, 0.1, true},
      {"32 layers x 5 ops x 5, alike", 160, 5, true, true, true, 0.1, true},
  };
  bool good = true;
  for (const auto& table : tables)
    good &= report(table.name, make(table), table.goal, table.rival, rival_limit);
  good &= report("stages: 96 layers, 1,024 devices", make_stages(), 0.25, false, rival_limit);
  return good ? 0 : 1;
}
