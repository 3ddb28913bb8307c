// The scalars of a program that the host writes before each step.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "job/job.h"

namespace perigee::train {

// Returns the scalars that the host writes before a step, for each optimizer group: "lr.0", ...
// and, where the weight decay varies, "weight_decay.0", ...; of a guarded step "most_loss" and
// "most_norm", below every number in train.skip_steps and else infinite.
std::map<std::string, double> step_scalars(const job::Job& job, int64_t step);

}  // namespace perigee::train
