#include "tests/solve/support.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "solve/evaluate.h"

namespace perigee::solve::testing {

double uniform(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

namespace {

int integer(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}
bool with_probability(Random& random, double share) { return uniform(random, 0, 1) < share; }
double amount(Random& random, bool whole, double high) {
  return whole ? integer(random, 0, static_cast<int>(high / 3))
               : std::round(uniform(random, 0, high) * 1e6) / 1e6 * 1.0000001;
}

// Faster options tend to take more memory.
AssignOption random_option(Random& random, bool whole) {
  const double size = uniform(random, 0, 1);
  auto near = [&](double value) {
    const double drawn = value * uniform(random, 0.5, 1.5);
    return whole ? std::floor(drawn) : drawn;
  };
  AssignOption option;
  option.time = near(30 * (1.1 - size));
  option.resident = near(4 * size);
  option.saved = near(10 * size);
  option.optimizer = amount(random, whole, 12);
  option.transient = amount(random, whole, 20);
  option.input = near(4 * size);
  option.live = near(12 * size);
  return option;
}

}  // namespace

AssignProblem random_assign(Random& random, const AssignShape& shape) {
  AssignProblem problem;
  problem.transient_count = integer(random, 0, 3);
  for (int i = 0; i < shape.ops; ++i) {
    AssignOp op;
    if (shape.same && i > 0) {
      op = problem.ops[0];
    } else {
      const int count = shape.same ? shape.options : integer(random, 1, shape.options);
      for (int j = 0; j < count; ++j) op.options.push_back(random_option(random, shape.whole));
    }
    op.name = fmt::format("op{}", i);
    op.group.clear();
    if (shape.groups && with_probability(random, 0.7)) {
      op.group = fmt::format(
          "g{}", with_probability(random, 0.8) ? i * 3 / shape.ops : integer(random, 0, 2));
      op.group_input = with_probability(random, 0.5);
    }
    if (shape.follows && i > 0 && with_probability(random, 0.3)) {
      const int leader = integer(random, 0, i - 1);
      const size_t count = problem.ops[leader].options.size();
      op.follows = leader;
      op.options.resize(count);
      for (auto& option : op.options) option = random_option(random, shape.whole);
    }
    problem.ops.push_back(std::move(op));
  }
  auto join = [&](int from, int to) {
    AssignEdge edge{.from = from, .to = to, .time = {}};
    const size_t size = problem.ops[from].options.size() * problem.ops[to].options.size();
    for (size_t k = 0; k < size; ++k) {
      edge.time.push_back(with_probability(random, shape.forbidden)
                              ? std::numeric_limits<double>::infinity()
                              : amount(random, shape.whole, 15));
    }
    problem.edges.push_back(std::move(edge));
  };
  for (int i = 0; shape.chain && i + 1 < shape.ops; ++i) {
    join(i, i + 1);
    if (shape.same && i > 0 && problem.edges[0].time.size() == problem.edges.back().time.size()) {
      problem.edges.back().time = problem.edges[0].time;
    }
  }
  for (int i = 0; i < shape.ops; ++i) {
    for (int j = 0; j < shape.ops; ++j) {
      if (i != j && with_probability(random, shape.edge_share / 2)) join(i, j);
    }
  }
  for (int m = 0; shape.moments && m < 3; ++m) {
    auto& moment = problem.moments.emplace_back();
    for (int i = 0; i < shape.ops; ++i) {
      if (with_probability(random, 0.6)) moment.push_back(i);
    }
  }
  if (shape.memory) {
    std::vector<int> fastest, smallest;
    for (const auto& op : problem.ops) {
      auto pick = [&](auto value) {
        const auto found = std::min_element(
            op.options.begin(), op.options.end(),
            [&](const auto& a, const auto& b) { return value(a) < value(b); });
        return static_cast<int>(found - op.options.begin());
      };
      fastest.push_back(pick([](const AssignOption& o) { return o.time; }));
      smallest.push_back(
          pick([](const AssignOption& o) { return o.resident + o.saved + o.optimizer + o.live; }));
      if (op.follows >= 0) {
        fastest.back() = fastest[op.follows];
        smallest.back() = smallest[op.follows];
      }
    }
    const double low = peak_memory(problem, smallest).total(),
                 high = peak_memory(problem, fastest).total();
    problem.memory_limit = low + (high - low) * shape.tightness;
    if (*problem.memory_limit < 0) problem.memory_limit = 0;
    if (shape.whole) problem.memory_limit = std::floor(*problem.memory_limit);
  }
  return problem;
}

AssignProblem random_small_assign(Random& random) {
  AssignShape shape;
  shape.ops = integer(random, 1, 7);
  shape.options = integer(random, 1, shape.ops > 5 ? 3 : 4);
  shape.edge_share = with_probability(random, 0.5) ? 0 : uniform(random, 0, 0.8);
  shape.chain = with_probability(random, 0.7);
  shape.memory = with_probability(random, 0.9);
  shape.groups = with_probability(random, 0.4);
  shape.follows = with_probability(random, 0.3);
  shape.moments = with_probability(random, 0.3);
  shape.forbidden = with_probability(random, 0.6) ? 0 : uniform(random, 0, 0.5);
  shape.whole = with_probability(random, 0.5);
  shape.same = with_probability(random, 0.3);
  shape.tightness = uniform(random, -0.3, 0.9);
  return random_assign(random, shape);
}

StagesProblem random_stages(Random& random, const StagesShape& shape) {
  StagesProblem problem;
  problem.layers = shape.layers;
  problem.devices = shape.devices;
  problem.microbatches = with_probability(random, 0.2) ? 1 : integer(random, 1, 32);
  for (int64_t d = 1; d <= shape.devices; d = d * 2 + (with_probability(random, 0.1) ? 1 : 0)) {
    problem.submeshes.push_back({1, d});
    if (d % 2 == 0 && with_probability(random, 0.3)) problem.submeshes.push_back({2, d / 2});
  }
  for (int first = 0; first < shape.layers; ++first) {
    for (int last = first; last < shape.layers; ++last) {
      for (int m = 0; m < static_cast<int>(problem.submeshes.size()); ++m) {
        if (!with_probability(random, shape.density)) continue;
        const auto& mesh = problem.submeshes[m];
        const double work = (last - first + 1) /
                            std::pow(static_cast<double>(mesh.hosts * mesh.devices_per_host), 0.85);
        StageCandidate candidate{
            .first = first, .last = last, .submesh = m, .time = work * uniform(random, 0.8, 1.2)};
        if (shape.whole) candidate.time = std::round(candidate.time * 4);
        if (shape.successors && with_probability(random, 0.6))
          candidate.max_successors = integer(random, 0, shape.layers);
        problem.candidates.push_back(candidate);
      }
    }
  }
  return problem;
}

StagesProblem random_small_stages(Random& random) {
  return random_stages(random, {.layers = integer(random, 1, 6),
                                .devices = integer(random, 1, 9),
                                .density = uniform(random, 0.2, 1),
                                .successors = with_probability(random, 0.7),
                                .whole = with_probability(random, 0.4)});
}

std::optional<double> exhaustive(const AssignProblem& problem) {
  std::vector<int> choice(problem.ops.size(), 0);
  std::optional<double> best;
  for (;;) {
    const auto evaluation = evaluate(problem, choice);
    if (evaluation.allowed && (!best || evaluation.time < *best)) best = evaluation.time;
    size_t i = 0;
    while (i < choice.size() && ++choice[i] == static_cast<int>(problem.ops[i].options.size()))
      choice[i++] = 0;
    if (i == choice.size()) return best;
  }
}

namespace {
void extend(const StagesProblem& problem, std::vector<int>& sequence, int layer,
            std::optional<double>& best) {
  if (layer == problem.layers) {
    const auto evaluation = evaluate(problem, sequence);
    if (evaluation.allowed && (!best || evaluation.time < *best)) best = evaluation.time;
    return;
  }
  for (size_t i = 0; i < problem.candidates.size(); ++i) {
    if (problem.candidates[i].first != layer) continue;
    sequence.push_back(static_cast<int>(i));
    extend(problem, sequence, problem.candidates[i].last + 1, best);
    sequence.pop_back();
  }
}
}  // namespace

std::optional<double> exhaustive(const StagesProblem& problem) {
  std::optional<double> best;
  std::vector<int> sequence;
  extend(problem, sequence, 0, best);
  return best;
}

std::string first_error(const Problem& problem, const Result& result,
                        std::optional<double> expected, double tolerance) {
  if (!expected) {
    if (result.verdict != Verdict::infeasible)
      return fmt::format("time {} for a problem without a solution", result.time);
    return result.reason.empty() ? "no reason" : "";
  }
  if (result.verdict == Verdict::infeasible)
    return fmt::format("infeasible ({}), but {} exists", result.reason, *expected);
  const auto evaluation = evaluate(problem, result.choice);
  if (!evaluation.allowed) return "not allowed: " + evaluation.why;
  if (evaluation.time != result.time || evaluation.memory != result.memory)
    return "time or memory is not that of the choice";
  if (std::abs(result.time - *expected) > tolerance * *expected)
    return fmt::format("time {}, not {}", result.time, *expected);
  if (result.verdict != Verdict::optimal)
    return fmt::format("not proven: bound {} of {}", result.lower_bound, result.time);
  if (result.time - result.lower_bound > 1e-9 * result.time)
    return "called optimal with a loose bound";
  if (result.lower_bound > result.time) return "bound above the time";
  return "";
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace perigee::solve::testing
