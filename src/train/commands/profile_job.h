// `perigee profile` on each rank.
#pragma once

#include <string>

#include "job/place.h"
#include "train/run/rank_session.h"
#include "train/task/task.h"

namespace perigee::train {

// Measures the ops and collectives of the job's plan. A strategy that depends on times (`auto`, or
// a script that asks for them) then makes a plan from the measured times, which is measured too,
// until the plan no longer changes. For `auto` the search's other plans that might be faster
// (AutoPlanner::runner_up) follow. Ends when the time budget is used up. All ranks call it; rank 0
// returns a report, the others "".
std::string profile_job(const Task& task, RankSession& session, const ProfileOptions& options,
                        const job::RankPlace& place, const ProfileProgress& progress);

}  // namespace perigee::train
