// The numbers that ranks exchange after each step.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "exec/comm/communicator.h"

namespace perigee::train {

struct RankReport {
  bool stop = false;  // this rank was asked to stop
  // Whether the step changed nothing; a stage that trains no parameter does not know.
  enum class Skipped : uint8_t { no, yes, unknown };
  Skipped skipped = Skipped::no;
  int64_t peak_bytes = 0, library_bytes = 0;
  int64_t computed_ns = 0;   // of the step, without waits
  int64_t paused_ns = 0;     // the longest time in which the process stood still
  int64_t submitted_ns = 0;  // in which the host submitted the step's work to the device
};

class StateExchange {
 public:
  explicit StateExchange(exec::Communicator& communicator);

  // Sends this rank's state and receives those of all. All ranks call it.
  void run(const RankReport& state);

  // Return the numbers of the last run, by rank.
  const std::vector<RankReport>& states() const { return states_; }
  bool any_stops() const;
  bool any_skipped() const;
  std::vector<int64_t> peak_bytes() const;
  std::vector<int64_t> library_bytes() const;
  std::vector<double> computed_seconds() const;
  std::vector<double> paused_seconds() const;
  std::vector<double> submitted_seconds() const;

 private:
  std::shared_ptr<exec::Group> group_;
  at::Tensor mine_, all_;
  std::vector<RankReport> states_;
};

}  // namespace perigee::train
