// How long an op takes on a device: as measured, else an estimate from the device's peaks, and
// always known which.
#pragma once

#include <optional>
#include <string>

#include "cost/cluster.h"
#include "cost/flops.h"

namespace perigee::cost {

struct Time {
  double seconds = 0;
  bool measured = false;
  bool operator==(const Time&) const = default;
};

// Returns the roofline's estimate: the longer of arithmetic and memory traffic, each at the share
// of its peak that the device reaches, and the launch. 0 for work of nothing (views).
Time estimate(const Work& work, const Device& device);

// What was measured on the devices that a plan is made for (profile/). Cluster descriptions of
// other machines have none.
class Measurements {
 public:
  virtual ~Measurements() = default;
  // Returns the seconds of one run of the op instance (compile::key), or nothing.
  virtual std::optional<double> op(const std::string& instance) = 0;
  // Returns the seconds of a collective over so many ranks, or nothing.
  virtual std::optional<double> collective(CollectiveKind kind, int64_t ranks, double bytes) = 0;
};

// Knows nothing: everything is an estimate.
class NoMeasurements : public Measurements {
 public:
  std::optional<double> op(const std::string&) override { return std::nullopt; }
  std::optional<double> collective(CollectiveKind, int64_t, double) override {
    return std::nullopt;
  }
};

}  // namespace perigee::cost
