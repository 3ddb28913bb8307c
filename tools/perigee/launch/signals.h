// Signals to the launcher, read from a descriptor.
#pragma once

#include <signal.h>

#include <chrono>
#include <optional>

#include "base/network/descriptor.h"

namespace perigee::command {

// While it lives, SIGCHLD, SIGINT, SIGTERM and SIGHUP interrupt nothing and wait to be taken. A
// process has at most one.
class Signals {
 public:
  // Throws Error (Status::failed) where the system has no descriptor.
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }  // readable when a signal waits

  // Returns the next signal, or nothing where none waits.
  std::optional<int> take();

  // Waits for a signal that asks this process to end, and returns it; 0 after the time.
  int wait(std::chrono::milliseconds time);

  // In a forked child: signals interrupt it as they would have this process at first.
  void restore() const;

 private:
  sigset_t before_;
  Descriptor fd_;
};

}  // namespace perigee::command
