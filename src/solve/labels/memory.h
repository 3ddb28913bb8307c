// Memory terms of labels: the terms that can still bind, their change in a step, and whether the
// limits can still be met.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "solve/assign/model.h"
#include "solve/assign/relaxation.h"
#include "solve/labels/sweep.h"

namespace perigee::solve {

// The choices of interest: those up to a time, in quanta. `constant` is the output of charged().
struct LabelTarget {
  double time = 0;
  double constant = 0;
  double charged() const { return time + constant; }
};

class LabelMemory {
 public:
  // For a search along `steps`: the variables in the sweep's order, with every pair. The arguments
  // are kept by reference.
  LabelMemory(const AssignModel& model, const Sweep& sweep, const ThresholdRange& range,
              const std::vector<SweepStep>& steps, const LabelTarget& target);

  // Returns the terms of the empty choice.
  std::vector<int64_t> initial() const;
  // Number of terms after step i.
  size_t width(size_t i) const { return terms_[i].width; }

  // The most memory that the remaining steps of a choice of interest may add to the two peaks.
  struct Remaining {
    int64_t backward, step;
  };
  // Returns that memory for a label after step i with this charged time, in the sweep's `state`.
  Remaining remaining(size_t i, uint64_t state, double charged) const {
    return {most_remaining(backward_reach_, i, state, charged),
            most_remaining(step_reach_, i, state, charged)};
  }

  // Computes the terms after a use in step i with the transient excess `over`. Terms that can no
  // longer bind get equal values in all labels. Returns whether the limits can still be met.
  bool advance(size_t i, const Use& use, int64_t over, const Remaining& remaining,
               const int64_t* before, std::vector<int64_t>& after) const;

 private:
  // How a step changes the memory terms. Terms: backward peak, step peak, largest closed group
  // (each where it can bind), then the open rows in ascending order.
  struct Terms {
    struct Row {
      int row = 0;
      int from = -1;                // slot before; -1: opens here
      int to = -1;                  // slot after; -1: closes here
      int use = -1;                 // index in Variable::rows; -1: the variable adds nothing
      int64_t least = 0, most = 0;  // memory that later steps add
    };
    std::vector<Row> rows;
    size_t width = 0;  // after the step
    // Memory that later steps add to the two peaks.
    int64_t least_backward = 0, most_backward = 0, least_step = 0, most_step = 0;
  };

  // Bounds the memory that a label may still add to a peak: rate * (target - charged time -
  // tables), where `tables` has the least time minus memory / rate of the remaining steps.
  struct Reach {
    double rate = 0;  // memory per time; 0: not known
    Sweep::Tables tables;
  };

  // Least and most memory that the options of a step add to a peak or a row.
  struct Span {
    int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
    void add(int64_t value) { least = std::min(least, value), most = std::max(most, value); }
  };
  // The memory that each step adds, and the first and last step of each row.
  struct Added {
    std::vector<Span> backward, step;               // per step
    std::vector<std::vector<Span>> rows;            // per step and row of its variable
    std::vector<int> first, last;                   // per row; -1: no step
    std::vector<int64_t> least, most;               // per row, over all steps
    bool step_below = true, backward_below = true;  // in every option, at most the other peak
  };

  Added added() const;
  void choose_peaks(const Added& added);
  void reach(bool& counted, int64_t Use::*memory, Reach& reach);
  void make_terms(const Added& added);
  int64_t most_remaining(const Reach& reach, size_t i, uint64_t state, double charged) const {
    if (reach.rate == 0) return std::numeric_limits<int64_t>::max() / 4;
    const double most = reach.rate * (target_.charged() - charged - reach.tables[i + 1][state]);
    return static_cast<int64_t>(std::clamp(most + 1, 0.0, 0x1p60));
  }

  const AssignModel& model_;
  const Sweep& sweep_;
  const ThresholdRange& range_;
  const std::vector<SweepStep>& steps_;
  const LabelTarget target_;
  std::vector<Terms> terms_;                              // per step
  bool backward_ = false, step_ = false, group_ = false;  // whether each peak has a term
  Reach backward_reach_, step_reach_;
  int64_t capacity_ = 0;
  int64_t most_group_ = 0;   // no choice has a larger one
  int64_t least_group_ = 0;  // every choice has a group at least this large
};

}  // namespace perigee::solve
