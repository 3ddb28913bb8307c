// Attributes of optimizers (optim/description.h) in a job.
#pragma once

#include <string_view>

#include "job/job.h"
#include "optim/optimizers.h"

namespace perigee::job {

// Returns the value that a key of [optimizer] has for the optimizer where the job does not set it;
// that of the first optimizer with the key where this one has no such attribute.
Value option_default(std::string_view optimizer, std::string_view key);

// Returns the attributes of the job's optimizer, and of the one that updates its other parameters.
optim::Options attributes_of(const OptimizerConfig& optimizer);

}  // namespace perigee::job
