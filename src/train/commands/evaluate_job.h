// `perigee evaluate` on each rank.
#pragma once

#include <string>

#include "train/run/rank_session.h"
#include "train/task/task.h"

namespace perigee::train {

// Evaluates the checkpoint ("": the newest of train.output) on the held-out data. All ranks call
// it; returns the metrics as JSON text.
std::string evaluate_job(const Task& task, RankSession& session, const std::string& checkpoint);

}  // namespace perigee::train
