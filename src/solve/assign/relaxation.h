// Lagrangian lower bounds of an assign model for a range of transient thresholds.
//
// sum of the k largest transients = min over thresholds h of (k * h + sum over transients t of
// max(0, t - h)), attained at the k-th largest. For a fixed h every term of the peak is linear in
// the choice, up to two maxima, and the problem is the union over h. For a range of thresholds
// [low, high], k * low plus the excess over high is a lower bound for all of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "solve/assign/model.h"
#include "solve/labels/sweep.h"

namespace perigee::solve {

// Lagrange multipliers of the limits: time per unit of memory, in quanta.
struct Prices {
  double backward = 0, step = 0;  // the two peaks
  std::vector<double> rows;       // groups, then moments; groups sum to at most backward + step
};

// Thresholds low..high, in memory quanta.
struct ThresholdRange {
  int64_t low = 0;
  int64_t high = 0;
};

// Returns the memory that `use` adds to both peaks for its transients: their excess over the range.
int64_t excess(const Use& use, const ThresholdRange& range);

// Returns the capacity minus transient_count * range.low, the thresholds' own share.
inline int64_t capacity_left(const AssignModel& model, const ThresholdRange& range) {
  return model.capacity - model.transient_count * range.low;
}

// Returns the time of each option plus its memory at the prices. A total minus `constant` (output)
// is a lower bound.
Sweep::Unary charged(const AssignModel& model, const ThresholdRange& range, const Prices& prices,
                     double& constant);

struct Relaxed {
  double bound = 0;  // no choice in the range is faster, in time quanta
  Prices prices;     // that attain it
};

struct RelaxOptions {
  double target = 0;  // stop once the bound is above it
  int iterations = 60;
  // Stop when the possible gain is below this share of the distance to the target.
  double tolerance = 0.01;
};

// Known solutions (option position per variable). The relaxation starts from these.
using Pool = std::vector<std::vector<int>>;

// Returns the best bound found. Calls `visit` with every choice that is found, and adds it to
// the pool.
Relaxed relax(const AssignModel& model, Sweep& sweep, const ThresholdRange& range,
              const RelaxOptions& options, Pool& pool,
              const std::function<void(std::span<const int>)>& visit);

}  // namespace perigee::solve
