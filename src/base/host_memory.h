// The memory of this machine that this process may use.
#pragma once

#include <string>

namespace perigee {

// Returns the bytes: the machine's memory, or the least limit of the process's control group and
// those above it (cgroup v1: memory.limit_in_bytes; v2: memory.max and memory.high). A limit that
// cannot be read does not count. `root`: the folder of /proc and /sys, for tests.
double usable_memory(const std::string& root = "");

}  // namespace perigee
