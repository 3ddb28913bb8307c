// The system's limits that a launcher meets: descriptors, processes, memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace perigee::command {

// Throws Error (Status::failed): `need`, but the system's reason, with the limit and the way to
// raise it where the reason is one. `need`: a clause, "the ranks need a pipe".
[[noreturn]] void fail_system(std::string_view need, int error);

// Returns the limit that a message of the system or a library shows to be reached, as the end of a
// sentence that begins with the message; "" where it shows none.
std::string limit_reached(std::string_view message);

// Returns why a rank whose memory is limited may have been ended by the signal, as limit_reached;
// "" where its memory is not limited, or by another signal.
std::string memory_limit(int signal);

// The message of a process that gets no memory from the system.
constexpr std::string_view kOutOfMemory =
    "[memory] the process is out of memory: raise its limit (ulimit -v, or the memory of its "
    "control group), or use more hosts or a smaller batch.micro";

// Begins the message of a std::system_error: a thread without memory for its stack, or beyond the
// limit of processes. limit_reached ends it.
constexpr std::string_view kNoThread =
    "[system] the process must get its threads and files, but got:";

// Closes all descriptors of this process but the standard streams and `kept`. For forked processes
// that use nothing of their parent.
void close_all_but(int kept);

// Raises this process's limit of open descriptors as far as the system permits, for it and its
// children. Throws Error where fewer than a rank of a job with `ranks` ranks on this host needs
// are left.
void provide_descriptors(int64_t ranks);

}  // namespace perigee::command
