// Solver problems and results as data: runtime/problems.md ("perigee.problem/1",
// "perigee.result/1"). Times and memory have the units of the file and are >= 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace perigee::solve {

// The largest time or memory, so that no sum of them overflows.
inline constexpr double kLargestNumber = 1e100;

// One way to execute an op.
struct AssignOption {
  double time = 0;
  double resident = 0;   // memory held for the whole step
  double saved = 0;      // memory of saved activations
  double optimizer = 0;  // working memory of the optimizer; does not coexist with saved activations
  double transient = 0;  // memory held only while this op runs
  double input = 0;      // memory kept instead of `saved` where the op's group is recomputed
  double live = 0;       // memory counted by moments
};

struct AssignOp {
  std::string name;
  std::vector<AssignOption> options;  // at least one
  int follows = -1;                   // an earlier op whose option index this one takes; -1: none
  std::string group;                  // recompute group; "": none
  bool group_input = false;           // keeps its input when its group is recomputed
};

// time[option of from][option of to], row-major; infinity marks a forbidden pair.
struct AssignEdge {
  int from = 0;
  int to = 0;
  std::vector<double> time;
};

// Choose one option per op: least sum of option and edge times under a peak-memory limit.
struct AssignProblem {
  std::optional<double> memory_limit;
  int transient_count = 2;
  std::vector<AssignOp> ops;
  std::vector<AssignEdge> edges;
  std::vector<std::vector<int>> moments;  // lists of ops whose `live` coexists
};

struct Submesh {
  int64_t hosts = 1;
  int64_t devices_per_host = 1;
};

// Layers first..last (inclusive) as one stage on a submesh.
struct StageCandidate {
  int first = 0;
  int last = 0;
  int submesh = 0;
  double time = 0;
  std::optional<int64_t> max_successors;  // most stages that may follow; none: unlimited
};

// Cut layers 0..layers-1 into stages that use exactly `devices`: least sum of time + (microbatches
// - 1) * largest time.
struct StagesProblem {
  int layers = 0;
  int64_t devices = 0;
  int64_t microbatches = 1;
  std::vector<Submesh> submeshes;
  std::vector<StageCandidate> candidates;
};

using Problem = std::variant<AssignProblem, StagesProblem>;

// unknown: the time limit passed before a solution was found or ruled out (solve_in_time).
enum class Verdict { optimal, feasible, infeasible, unknown };

struct Result {
  Verdict verdict = Verdict::infeasible;
  double time = 0;
  double lower_bound = 0;   // no solution is faster
  double memory = 0;        // peak; 0 for stages, which count none
  std::vector<int> choice;  // assign: option per op; stages: indices of candidates, in order
  std::string reason;       // infeasible: the violated constraint and its excess
  std::string solver;       // the solver that answered: "labels" or "ilp"
  double seconds = 0;
};

// Returns the problem in a JSON text. Throws Error (invalid) that names
// the place, `ops[3].options[1].time`.
Problem parse_problem(std::string_view json);

// Throws Error (invalid) where a problem built in code breaks what parse_problem guarantees.
void check_problem(const Problem& problem);

// Returns the result as one JSON object ("perigee.result/1") that ends in a newline.
std::string to_json(const Result& result);

// Returns the result as a few lines for people; the problem gives the names.
std::string to_text(const Result& result, const Problem& problem);

}  // namespace perigee::solve
