// The message of a process that an error of the system or of the program ends.
#pragma once

#include <string>

namespace perigee::command {

// From now on, the process ends with one sentence and status 1 where the system gives it no memory
// or thread, on whichever thread. `who` begins the sentence: "rank 3"; "": nothing does.
void report_exhaustion(const std::string& who);

// report_exhaustion, and a signal of a program error (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT)
// makes the process write the stack of the thread that received it, and then ends the process with
// the signal's default action. A read of a mapped file that another process has truncated ends it
// with one sentence and status 1.
void report_crashes(const std::string& who);

}  // namespace perigee::command
