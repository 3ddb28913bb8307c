#include "relay_input.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "../launch/limits.h"
#include "base/network/descriptor.h"

namespace perigee::command {
namespace {

// Copies bytes as they come until the end of either side.
void copy(int from, int to) {
  std::array<char, 4096> bytes;
  for (;;) {
    const auto got = ::read(from, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    for (ssize_t done = 0; done < got;) {
      const auto put = ::write(to, bytes.data() + done, static_cast<size_t>(got - done));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return;
      done += put;
    }
  }
}

}  // namespace

InputRelay::InputRelay() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_system("standard input needs a pipe", errno);
  const Descriptor out(ends[0]), in(ends[1]);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail_system("standard input needs a process", errno);
  if (pid_ == 0) {
    ::signal(SIGPIPE, SIG_IGN);
    ::close(out.get());
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && ::getppid() == parent) {
      copy(STDIN_FILENO, in.get());
    }
    ::_exit(0);
  }
  if (::dup2(out.get(), STDIN_FILENO) < 0) fail_system("standard input must be replaced", errno);
}

InputRelay::~InputRelay() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace perigee::command
