#include "search/cut/cut.h"

#include <algorithm>

#include "base/infinity.h"
#include "solve/solve.h"

namespace perigee::search {
namespace {

struct Lengths {
  int least = 1, most = 0;
};

class Cutting {
 public:
  explicit Cutting(const Row& row)
      : row_(row),
        rounds_(row.rounds.value_or(row.microbatches - 1)),
        stages_(static_cast<int>(row.stages)) {
    for (auto& parts : parts_) parts.resize(static_cast<size_t>(row.blocks) + 1);
  }

  std::optional<Cut> run() {
    if (stages_ > row_.blocks) return std::nullopt;
    bound_lengths();
    solve::StagesProblem problem{.layers = row_.blocks,
                                 .devices = row_.stages,
                                 .microbatches = rounds_ + 1,
                                 .submeshes = {{1, 1}}};
    for (int begin = 0; begin < row_.blocks; ++begin) {
      if (!reachable(begin)) continue;
      if (begin > 0) {
        add(problem, StageKind::last, begin, row_.blocks - begin);
      }
      const auto kind = begin == 0 ? StageKind::first : StageKind::middle;
      const auto& lengths = of(kind);
      for (int length = lengths.least; length <= lengths.most; ++length) {
        if (begin + length < row_.blocks && reachable(begin + length)) {
          add(problem, kind, begin, length);
        }
      }
    }
    if (problem.candidates.empty()) return std::nullopt;
    if (row_.time_limit <= 0) return even_cut();
    const auto solved = solve::solve_in_time(
        problem, {.solver = row_.solver, .time_limit = row_.time_limit});
    if (solved.verdict == solve::Verdict::infeasible) return std::nullopt;
    if (solved.verdict == solve::Verdict::unknown) return even_cut();
    Cut cut{.best = solved.verdict == solve::Verdict::optimal};
    for (int index : solved.choice) {
      cut.begins.push_back(problem.candidates[index].first);
      cut.recomputed_blocks.push_back(recomputed_[index]);
    }
    cut.begins.erase(cut.begins.begin());
    return cut;
  }

 private:
  const std::vector<StagePart>& parts(StageKind kind, int length) {
    auto& parts = parts_[static_cast<size_t>(kind)][static_cast<size_t>(length)];
    if (parts.empty()) parts = row_.parts(kind, length);
    return parts;
  }

  Lengths& of(StageKind kind) { return lengths_[static_cast<size_t>(kind)]; }
  StageKind kind_of(int stage) const {
    return stage == 0             ? StageKind::first
           : stage == stages_ - 1 ? StageKind::last
                                  : StageKind::middle;
  }

  // Returns the blocks of a stage of an even cut; the remainder goes to the first stages, or to the
  // last ones, which have fewer microbatches in flight.
  int even_length(int stage, bool early) const {
    const int rest = row_.blocks % stages_;
    return row_.blocks / stages_ + (early ? stage < rest : stage >= stages_ - rest);
  }

  // Returns the objective of an even cut.
  double even(bool early) {
    double sum = 0, longest = 0;
    int begin = 0;
    for (int s = 0; s < stages_; ++s) {
      const int length = even_length(s, early);
      const auto& [seconds, most, recomputed_blocks] = parts(kind_of(s), length).back();
      if (most < std::min<int64_t>(row_.microbatches, stages_ - s)) return kInfinity;
      if (row_.allowed && !row_.allowed(begin, begin + length)) return kInfinity;
      begin += length;
      sum += seconds;
      longest = std::max(longest, seconds);
    }
    return sum + static_cast<double>(rounds_) * longest;
  }

  std::optional<Cut> even_cut() {
    const double early = even(true), late = even(false);
    if (early == kInfinity && late == kInfinity) return std::nullopt;
    Cut cut{.best = false};
    int begin = 0;
    for (int s = 0; s < stages_; ++s) {
      if (s > 0) cut.begins.push_back(begin);
      const int length = even_length(s, early <= late);
      cut.recomputed_blocks.push_back(parts(kind_of(s), length).back().recomputed_blocks);
      begin += length;
    }
    return cut;
  }

  void bound_lengths() {
    const double known = std::min(even(true), even(false)) * (1 + 1e-9);
    const int longest = row_.blocks - stages_ + 1;
    int64_t all = 0;
    for (int s = 0; s < stages_; ++s) {
      const auto kind = kind_of(s);
      auto& lengths = of(kind);
      if (kind != StageKind::middle || s == 1) {
        // The objective counts a stage once in the sum and once in each round.
        lengths.most = last_that(longest, [&](int length) {
          const auto& ways = parts(kind, length);
          return ways.back().most > 0 &&
                 ways.front().seconds * static_cast<double>(rounds_ + 1) <= known;
        });
      }
      all += lengths.most;
    }
    // A stage has at least the blocks that all other stages together have no room for.
    for (auto& lengths : lengths_) {
      const auto others = all - lengths.most;
      lengths.least = static_cast<int>(std::max<int64_t>(1, row_.blocks - others));
    }
  }

  // Returns the largest length up to `longest` for which `holds` is true, 0 for none. It must be
  // true for all shorter lengths.
  template <class F>
  static int last_that(int longest, F holds) {
    int low = 0, high = longest;
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (holds(middle)) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  // Returns whether a stage can begin at the block, by the lengths of earlier and of later stages.
  bool reachable(int begin) {
    if (begin == 0) return true;
    const auto &first = of(StageKind::first), &middle = of(StageKind::middle),
               &last = of(StageKind::last);
    const int left = row_.blocks - begin;
    for (int s = 1; s < stages_; ++s) {
      const int before = s - 1, later_stages = stages_ - 1 - s;
      if (first.least + before * middle.least <= begin &&
          begin <= first.most + before * middle.most &&
          last.least + later_stages * middle.least <= left &&
          left <= last.most + later_stages * middle.most) {
        return true;
      }
    }
    return false;
  }

  void add(solve::StagesProblem& problem, StageKind kind, int begin, int length) {
    const auto& lengths = of(kind);
    if (length < lengths.least || length > lengths.most) return;
    if (row_.allowed && !row_.allowed(begin, begin + length)) return;
    for (const auto& [seconds, most, recomputed_blocks] : parts(kind, length)) {
      if (most < 1) continue;
      solve::StageCandidate candidate{.first = begin, .last = begin + length - 1, .submesh = 0};
      candidate.time = seconds;
      if (most < row_.microbatches) candidate.max_successors = most - 1;
      problem.candidates.push_back(candidate);
      recomputed_.push_back(recomputed_blocks);
    }
  }

  const Row& row_;
  const int64_t rounds_;
  const int stages_;
  std::vector<std::vector<StagePart>> parts_[3];  // by kind and length
  std::vector<int> recomputed_;                   // by candidate
  Lengths lengths_[3];                            // by kind
};

}  // namespace

std::optional<Cut> cut(const Row& row) { return Cutting(row).run(); }

}  // namespace perigee::search
