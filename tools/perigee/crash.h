// The message of a process that a signal ends.
#pragma once

#include <string>

namespace perigee::command {

// From now on, a signal of a program error (SIGSEGV, SIGBUS, SIGFPE, SIGILL,
// SIGABRT) has the process write the stack of the thread that it came to, before it ends by it as
// ever. `who` begins the first line: "rank 3".
void tell_of_crashes(const std::string& who);

}  // namespace perigee::command
