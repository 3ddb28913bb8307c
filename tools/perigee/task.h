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

// Does the same for a command that runs ranks, in this process or others: where the mesh follows
// from a call of the strategy's function alone, the plan is made once, in a process of its own, for
// the number of ranks. Throws Error for a mesh with more ranks than this host can run.
train::Task make_running_task(const JobOptions& options);

// Returns the options of launch().
LaunchOptions launch_options(const JobOptions& options, const train::Task& task);

}  // namespace perigee::command
