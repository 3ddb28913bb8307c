// The ranks of a command: those that it starts on this host, or the one that another launcher has
// made this process.
#pragma once

#include <functional>
#include <string>

#include "../command.h"
#include "../launch/launch.h"
#include "train/task/task.h"

namespace perigee::command {

struct RankOptions {
  // As in LaunchOptions.
  std::string lost_work;
  std::function<void(const std::string& job, bool again)> before_round = [](auto&&...) {};
  // Whether the user's first signal asks a rank to stop (stop_requested), instead of ending it.
  bool stops_between_steps = true;
};

// Runs `body` as one rank of another launcher, or forks the ranks of this host. Returns the status
// of the command.
int run_ranks(const JobOptions& options, const train::Task& task,
              const std::function<void(const Place&)>& body, const RankOptions& ranks = {});

// From now on the first SIGINT or SIGTERM asks this process to stop; a second one ends it.
void stop_on_signals();

// Returns whether a signal has asked this rank to stop.
bool stop_requested();

// Returns the beginning of a rank's lines on standard error; "" for a single rank.
std::string log_prefix(const Place& place);

// Throws Error for hosts that come and go, which only training survives.
void require_fixed_hosts(const JobOptions& options);

// Throws Error for --cluster: commands that run ranks do so on this machine.
void refuse_cluster(const JobOptions& options);

}  // namespace perigee::command
