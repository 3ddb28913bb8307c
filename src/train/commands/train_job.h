// `perigee train` on each rank.
#pragma once

#include <functional>

#include "train/run/rank_session.h"
#include "train/task/task.h"

namespace perigee::train {

// Trains the task's job until its last step, or until `stop` returns true on a rank after a step;
// throws Error in that case. Rank 0 writes the run's folder. All ranks call it.
void train_job(const Task& task, RankSession& session, const std::function<bool()>& stop);

}  // namespace perigee::train
