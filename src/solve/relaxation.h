// Lagrangian lower bounds of an assign model for a range of transient thresholds.
//
// The sum of the k largest transients is the least, over thresholds h, of k*h + sum of what each
// transient exceeds h by, and is attained at the k-th largest. So for a fixed h every term of the
// peak is linear in the choice, up to two maxima, and the problem is the union of these over h. For
// thresholds lo..hi, charging k*lo and the excess over hi bounds all of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "solve/assign_model.h"
#include "solve/sweep.h"

namespace perigee::solve {

// Time per unit of memory, in quanta: what each limit is worth.
struct Prices {
  double backward = 0, step = 0;  // the two peaks
  std::vector<double> rows;       // groups, then moments; groups sum to at most backward + step
};

// Thresholds low..high, in memory quanta.
struct ThresholdRange {
  int64_t low = 0;
  int64_t high = 0;
};

// Returns what `use` adds to both peaks beyond its resident and saved parts: the excess of
// transients over the range.
int64_t excess(const Use& use, const ThresholdRange& range);

// What is left for the peaks once the thresholds' own share is taken.
inline int64_t capacity_left(const Model& model, const ThresholdRange& range) {
  return model.capacity - model.transient_count * range.low;
}

// Returns the time of each option with its memory charged at the prices, and in `constant` what to
// subtract from a total.
Sweep::Unary charged(const Model& model, const ThresholdRange& range, const Prices& prices,
                     double& constant);

struct Relaxed {
  double bound = 0;  // no choice in the range is faster, in time quanta
  Prices prices;     // that attain it
};

struct RelaxOptions {
  double target = 0;  // stop once the bound is above it
  int iterations = 60;
  double close = 0.01;  // stop when what is left to gain is this share of the way to the target
};

// A pool of solutions to start from: option positions in the model at hand.
using Pool = std::vector<std::vector<int>>;

// Returns the best bound found. Every choice met on the way goes to `visit` and into the pool.
Relaxed relax(const Model& model, Sweep& sweep, const ThresholdRange& range,
              const RelaxOptions& options, Pool& pool,
              const std::function<void(std::span<const int>)>& visit);

}  // namespace perigee::solve
