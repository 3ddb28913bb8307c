// The message of a process that a signal ends.
#pragma once

#include <string>

namespace perigee::command {

// From now on, a signal of a program error (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT) makes the
// process write the stack of the thread that received it, and then ends the process with the
// signal's default action. `who` begins the first line: "rank 3".
void report_crashes(const std::string& who);

}  // namespace perigee::command
