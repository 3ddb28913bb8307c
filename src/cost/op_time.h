// The time of an op on a device: measured, else estimated from the device's peaks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "cost/flops.h"

namespace perigee::cost {

struct Time {
  double seconds = 0;
  bool measured = false;
  bool operator==(const Time&) const = default;
};

// Returns the roofline estimate: max(arithmetic, traffic) + launch, each at the share of its peak
// that the device reaches. 0 without work (views).
Time estimate(const OpWork& work, const DeviceSpec& device);

// Measured times of the devices that a plan is made for (profile/). Descriptions of other machines
// have none.
class Measurements {
 public:
  virtual ~Measurements() = default;
  // Returns the seconds of one run of the op instance (compile::key), or nothing.
  virtual std::optional<double> op(const std::string& instance) = 0;
  // Returns the seconds of a collective over a group of the cluster (collective_seconds), or nothing.
  virtual std::optional<double> collective(const Cluster& cluster, CollectiveKind kind,
                                           double bytes, const std::vector<int64_t>& group) = 0;
};

// Has no measurements: every time is an estimate.
class NoMeasurements : public Measurements {
 public:
  std::optional<double> op(const std::string&) override { return std::nullopt; }
  std::optional<double> collective(const Cluster&, CollectiveKind, double,
                                   const std::vector<int64_t>&) override {
    return std::nullopt;
  }
};

}  // namespace perigee::cost
