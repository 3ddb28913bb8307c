// How long one op takes on this machine: run by the executor, with its memory planned, as in a
// program.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "compile/trace.h"
#include "exec/device.h"

namespace perigee::profile {

struct Measured {
  double seconds = 0;   // the median
  double interval = 0;  // half of its 95% confidence interval
  int64_t samples = 0;
  bool operator==(const Measured&) const = default;
};

struct Effort {
  double budget = 0.1;      // seconds for one measurement, beyond the fewest samples
  double precision = 0.02;  // it ends when the interval is this share of the median
  int64_t fewest = 5;       // samples, behind a warm-up
};

// Returns the median of what `sample` returns, called until the effort is spent or the interval is
// narrow.
Measured median_of(const std::function<double()>& sample, const Effort& effort);

// Runs the op again and again, on operands of one half (whole numbers: zero). Returns nothing for
// an op that shows its operand. Throws Error where it cannot be run.
std::optional<Measured> measure(const compile::OpInstance& instance, compile::TraceSource& traces,
                                const std::shared_ptr<exec::Device>& device, int threads,
                                const Effort& effort = {});

// A collective's time by the bytes that it moves: latency + bytes * per_byte.
struct Line {
  double latency = 0;
  double per_byte = 0;
  double interval = 0;  // the largest of the points', as a share of their medians
  bool operator==(const Line&) const = default;
};

// Returns the line nearest to the points, each weighted by one over its time; never one that falls
// or begins below 0.
Line fit(const std::vector<std::pair<double, Measured>>& by_bytes);

}  // namespace perigee::profile
