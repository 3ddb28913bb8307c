// From options to a task: the job, its strategy, and how many ranks.
#pragma once

#include "command.h"
#include "launch/launch.h"
#include "train/host.h"

namespace perigee::command {

// Reads job and strategy and settles the number of ranks: the launcher's environment, else --nproc
// (x --nodes), else cluster.ranks, else the product of parallel_mode, else 1
// (runtime/command_line.md). Throws Error.
train::Task make_task(const JobOptions& options, const std::optional<Place>& place);

// Returns the options of launch().
LaunchOptions launch_options(const JobOptions& options, const train::Task& task);

}  // namespace perigee::command
