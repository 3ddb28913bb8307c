#include "forked_number.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>

#include "base/log.h"
#include "base/network/descriptor.h"
#include "limits.h"

namespace perigee::command {
namespace {

// Runs in the forked process.
[[noreturn]] void compute_and_exit(const std::function<int64_t()>& compute, int out, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  log::set_sink(nullptr);
  if (const int null = ::open("/dev/null", O_WRONLY | O_CLOEXEC); null >= 0) {
    ::dup2(null, STDOUT_FILENO);
    ::dup2(null, STDERR_FILENO);
  }
  try {
    const int64_t number = compute();
    ::_exit(::write(out, &number, sizeof number) == sizeof number ? 0 : 1);
  } catch (const std::exception&) {
    ::_exit(1);
  }
}

}  // namespace

std::optional<int64_t> forked_number(const std::function<int64_t()>& compute) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_system("a plan needs a pipe", errno);
  const Descriptor in(ends[0]);
  Descriptor out(ends[1]);
  std::fflush(nullptr);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail_system("a plan needs a process", errno);
  if (child == 0) compute_and_exit(compute, out.get(), parent);
  out = Descriptor();
  int64_t number = 0;
  ssize_t got = 0;
  while ((got = ::read(in.get(), &number, sizeof number)) < 0 && errno == EINTR) {
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (got != sizeof number || status != 0) return std::nullopt;
  return number;
}

}  // namespace perigee::command
