#include "limits.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "base/fail.h"

namespace perigee::command {
namespace {

// Open at the same time in a rank: libraries while they load, the profile database, data,
// a checkpoint.
constexpr int64_t kOfOneRank = 23;
constexpr int64_t kOfEachPeer = 16;  // connections of groups, while they are made

int64_t limit_of(int resource) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return -1;
  return limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit.rlim_cur);
}

// Returns how many descriptors this process can open, counted up to `enough`.
int64_t free_descriptors(int64_t enough, int64_t limit) {
  int64_t found = 0;
  for (int64_t fd = 0; fd < limit && found < enough; ++fd) {
    found += ::fcntl(static_cast<int>(fd), F_GETFD) < 0 && errno == EBADF;
  }
  return found;
}

}  // namespace

void fail_system(std::string_view need, int error) {
  std::string remedy;
  if (error == EMFILE) {
    remedy = limit_reached(std::strerror(error));
  } else if (error == ENFILE) {
    remedy = " on this host (raise fs.file-max)";
  } else if (error == EAGAIN) {
    remedy = ": this user may have a limited number of processes (raise the limit: ulimit -u)";
  } else if (error == ENOMEM) {
    remedy = ": this host or this process (ulimit -v) is out of memory";
  }
  fail_run("launch", "{}, but got: {}{}", need, std::strerror(error), remedy);
}

std::string limit_reached(std::string_view message) {
  const auto has = [&](std::string_view part) { return message.find(part) != message.npos; };
  // Of a thread or a process; errors of fail_system name the limit themselves.
  if (has(std::strerror(EAGAIN)) && !has("ulimit") && !has("[communicator]")) {
    return ": the process is out of memory (raise the limit: ulimit -v), or its user has too many "
           "threads and processes (ulimit -u)";
  }
  if (!has(std::strerror(EMFILE))) return "";
  return fmt::format(": this process may open {} (raise the limit: ulimit -n)",
                     limit_of(RLIMIT_NOFILE));
}

std::string memory_limit(int signal) {
  const auto limit = limit_of(RLIMIT_AS);
  if (limit < 0 || (signal != SIGABRT && signal != SIGSEGV && signal != SIGBUS)) return "";
  return fmt::format(
      ": it may be out of memory, as its address space is limited to {} MiB "
      "(ulimit -v)",
      limit >> 20);
}

void close_all_but(int kept) {
  const auto close = [](unsigned first, unsigned last) {
    if (first > last || ::close_range(first, last, 0) == 0) return;
    // An old kernel.
    for (unsigned fd = first; fd <= last && fd < 65536; ++fd) ::close(static_cast<int>(fd));
  };
  close(3, static_cast<unsigned>(kept) - 1);
  close(static_cast<unsigned>(kept) + 1, ~0u);
}

void provide_descriptors(int64_t ranks) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) fail_system("the limits must be readable", errno);
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    // A system may refuse its own hard limit: the soft one then stays.
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) ::getrlimit(RLIMIT_NOFILE, &limit);
  }
  const int64_t needed = kOfOneRank + kOfEachPeer * (ranks - 1);
  const auto most = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, 1 << 30));
  const auto left = free_descriptors(needed, most);
  if (left >= needed) return;
  fail_run(
      "launch",
      "a rank of {} on this host opens up to {} files and sockets at once, but may open {}, of "
      "which {} are free: raise the limit (ulimit -n)",
      ranks, needed, most, left);
}

}  // namespace perigee::command
