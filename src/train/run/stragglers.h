// Stragglers: ranks that compute longer than their peers, or stood still.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace perigee::train {

// Times of one step, in seconds; vectors are by rank.
struct RankTimes {
  double step = 0;               // the whole step, the same for all ranks
  std::vector<double> computed;  // between the step's begin and its exchange, without waits
  std::vector<double> paused;    // the longest time in which the process stood still
};

// Returns for each rank the number of its stage: ranks of a stage do equal work.
std::vector<int64_t> peers_of(const plan::Plan& plan);

// A pure function of the times that were added. A rank is compared with the other ranks of its
// stage, and a rank that is alone with its own fastest window.
class Stragglers {
 public:
  static constexpr size_t kWindow = 16;      // steps whose median counts, at least
  static constexpr double kSeconds = 0.3;    // that they take, at least: short steps vary
  static constexpr double kSlower = 1.35;    // times its peers: a straggler
  static constexpr double kRecovered = 1.1;  // times its peers: no longer one
  static constexpr double kShare = 0.1;      // of the step: a smaller delay is not named
  static constexpr double kPause = 1;        // seconds

  // `peers`: by rank, the number of its group.
  explicit Stragglers(std::vector<int64_t> peers);

  // Adds a step. Returns the sentences for the log: ranks that stood still in it, became stragglers
  // or recovered.
  std::vector<std::string> add(int64_t step, const RankTimes& times);

  // Returns the seconds that each rank computed in all steps.
  const std::vector<double>& total_computed() const { return total_; }

 private:
  struct Rank {
    std::deque<double> window;
    std::optional<double> fastest;  // the smallest median of a full window
    bool slow = false;
  };
  std::deque<double> steps_;  // those of the windows
  double seconds_ = 0;        // that they took

  // Returns the median of the rank's peers or, where it has none, of its fastest window.
  double expected(size_t rank, const std::vector<double>& medians) const;

  std::vector<int64_t> peers_;
  std::vector<Rank> ranks_;
  std::vector<double> total_;
};

}  // namespace perigee::train
