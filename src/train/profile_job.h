// `perigee profile` on each rank.
#pragma once

#include <string>

#include "job/place.h"
#include "train/host.h"
#include "train/session.h"

namespace perigee::train {

// Measures what the programs of the job's plan run. A strategy that searches (`auto`, a script that
// asks for times) is then asked again, with these times, and what it comes to is measured as well,
// until it comes to a plan that was. Behind the choice of `auto` those of the search's other plans
// are measured that might be faster (AutoPlanner::runner_up). Ends when the budget is used up. All
// ranks call it; returns what Host::profile does.
std::string profile_job(const Task& task, Session& session, const ProfileOptions& options,
                        const job::RankPlace& place, const ProfileProgress& progress);

}  // namespace perigee::train
