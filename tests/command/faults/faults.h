// The calls that plugin_faults.cc counts and refuses, and where it counts them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace perigee::test {

constexpr std::array<std::string_view, 19> kFaultCalls = {
    "new",     "write",    "pwrite", "writev", "read",          "fsync",  "rename",
    "mkdir",   "unlink",   "open",   "openat", "mmap",          "socket", "connect",
    "accept4", "signalfd", "pipe2",  "fork",   "pthread_create"};

// Processes with separate counts: the launcher, rank 0, and the other ranks.
constexpr int kRoles = 3;

// The contents of the file that all processes of a job share.
struct Counters {
  int64_t calls[kRoles][kFaultCalls.size()] = {};
};

}  // namespace perigee::test
