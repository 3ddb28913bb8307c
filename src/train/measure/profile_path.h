// Where the profile database is.
#pragma once

#include <string>

#include "job/job.h"

namespace perigee {

// Returns the path of this user's profile database; "" where there is no folder for it.
std::string default_profile();
// Returns the path of the job's profile database: cluster.profile, else the user's.
std::string profile_of(const job::Job& job);

}  // namespace perigee
