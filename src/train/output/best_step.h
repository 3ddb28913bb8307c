// Validation losses over a run: its best step, and whether training ends early.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "job/job.h"

namespace perigee::train {

class BestStep {
 public:
  // `state`: of the checkpoint that training continues from, or "{}".
  BestStep(const job::Job& job, const std::string& state);

  // Adds the validation loss after a step. Returns whether it is the lowest so far.
  bool add(int64_t step, double loss);

  int64_t step() const { return step_; }  // with the lowest loss; 0: there is none
  double loss() const { return loss_; }
  // Returns whether train.early_stop_patience validations in a row were no better.
  bool ends_training() const { return patience_ > 0 && in_a_row_ >= patience_; }
  int64_t in_a_row() const { return in_a_row_; }

  // Returns the state of the loop, a JSON object, with that of this object added.
  std::string with_state(const std::string& state) const;

 private:
  bool kept_;  // whether the job asks for any of this
  int64_t patience_;
  double min_delta_;
  int64_t step_ = 0;
  double loss_ = std::numeric_limits<double>::infinity();
  double reference_ = std::numeric_limits<double>::infinity();  // that counts for the patience
  int64_t in_a_row_ = 0;                                        // validations that were no better
};

// Returns the step of the lowest validation loss that a state has; 0: none.
int64_t best_step_of(const std::string& state);

}  // namespace perigee::train
