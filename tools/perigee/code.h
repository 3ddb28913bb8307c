// Code that a job names (runtime/security.md).
#pragma once

#include <string>

#include "job/job.h"

namespace perigee::command {

// Returns the job's model as a phrase where its file runs as code once it is opened ("the model
// plugin model.so"), else "". Lua runs in the sandbox and is no such code.
std::string model_code(const job::Job& job);

// Replaces a sampler's library by a built-in order and returns it as a phrase ("the sampler
// order.so"); "" where there is none. The order of samples is not part of a plan.
std::string take_sampler(job::Job& job);

}  // namespace perigee::command
