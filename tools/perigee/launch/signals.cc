#include "signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

#include "base/network/socket.h"
#include "limits.h"

namespace perigee::command {

Signals::Signals() {
  // A parent may have had its children's ends ignored; then none would be reported to us.
  if (::signal(SIGCHLD, SIG_DFL) == SIG_ERR) fail_system("the launcher must see ranks end", errno);
  sigset_t taken;
  sigemptyset(&taken);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&taken, signal);
  if (::sigprocmask(SIG_BLOCK, &taken, &before_) != 0) {
    fail_system("the launcher must receive signals", errno);
  }
  fd_ = Descriptor(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (fd_.get() >= 0) return;
  const int error = errno;
  restore();
  fail_system("the launcher needs a descriptor for signals", error);
}

Signals::~Signals() { restore(); }

void Signals::restore() const { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }

std::optional<int> Signals::take() {
  signalfd_siginfo info{};
  for (;;) {
    const auto got = ::read(fd_.get(), &info, sizeof info);
    if (got == sizeof info) return static_cast<int>(info.ssi_signo);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno != EAGAIN) fail_system("the launcher must read signals", errno);
    return std::nullopt;
  }
}

int Signals::wait(std::chrono::milliseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  for (;;) {
    while (const auto signal = take()) {
      if (*signal != SIGCHLD) return *signal;
    }
    if (std::chrono::steady_clock::now() >= end) return 0;
    pollfd one{fd_.get(), POLLIN, 0};
    if (::poll(&one, 1, milliseconds_until(end)) < 0 && errno != EINTR) {
      fail_system("the launcher must wait for signals", errno);
    }
  }
}

}  // namespace perigee::command
