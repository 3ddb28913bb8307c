// A job as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "job/job.h"

namespace perigee::train {

// Returns the job as JSON, as strategy functions and model scripts see it.
nlohmann::json job_json(const job::Job& job);

}  // namespace perigee::train
