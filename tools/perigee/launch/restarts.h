// When a job is started again.
#pragma once

#include <chrono>
#include <cstdint>

namespace perigee::command {

// The exit status of a rank that stopped on request (train::kStopped); the command's is 1.
inline constexpr int kStopped = 18;

// Returns whether a restart may mend a failure with this exit status: not a wrong command, job or
// file (2), an infeasible one (3), or a result that was found wrong twice (17).
constexpr bool may_mend(int status) { return status == 1 || status == 16; }

// Returns the time before the restart with this number, from 1: doubled each time, at most
// a minute.
std::chrono::milliseconds backoff(double first_seconds, int64_t restart);

}  // namespace perigee::command
