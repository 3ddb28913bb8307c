// A launcher in a process of its own, with ranks that a test writes.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdio>
#include <functional>
#include <new>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "tests/command/support.h"
#include "tools/perigee/launch/launch.h"

namespace perigee::test {

using command::LaunchOptions;
using command::Place;

// Messages of the launcher's process and its ranks to the test.
struct Shared {
  std::atomic<int> ready{0};
  std::atomic<int> world[8]{};
  std::atomic<int> port[8]{};
  std::atomic<int> listening[8]{};
};

// A launcher in a forked process. Its standard error, and with it those of the ranks, is a pipe:
// when that ends, no process of the job is left.
class LaunchedJob {
 public:
  LaunchedJob(const LaunchOptions& options, const std::function<int(const Place&, Shared&)>& body) {
    void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    shared_ = new (memory) Shared;
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::close(ends[0]);
      ::dup2(ends[1], 2);
      ::close(ends[1]);
      for (const int signal : {SIGTERM, SIGINT, SIGHUP}) ::signal(signal, SIG_DFL);  // not Catch2's
      log::set_sink(log::standard_sink());
      int status = 99;
      try {
        status = command::launch(options,
                                 [&](const Place& place) { return body(place, *shared_); });
      } catch (const Error& error) {
        std::fprintf(stderr, "%s\n", error.what());
        status = static_cast<int>(error.status());
      }
      ::_exit(status);
    }
    ::close(ends[1]);
    errors_ = ends[0];
  }
  ~LaunchedJob() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    ::close(errors_);
    ::munmap(shared_, sizeof(Shared));
  }

  Shared& shared() { return *shared_; }
  pid_t pid() const { return pid_; }

  // Waits until the ranks report that they run.
  void wait_ready(int ranks) {
    const double deadline = now() + 10;
    while (shared_->ready < ranks) {
      REQUIRE(now() < deadline);
      ::usleep(1000);
    }
  }

  // Returns the seconds until the job ended, at most 10, and keeps its output.
  double seconds_to_end() {
    const double begin = now();
    while (read_some(begin + 10)) {
    }
    return now() - begin;
  }

  // Waits at most 10 s for a text of the job.
  void wait_for(const std::string& text) {
    const double deadline = now() + 10;
    while (written_.find(text) == std::string::npos) REQUIRE(read_some(deadline));
  }

  // Returns the launcher's exit status, or minus its signal, once all has ended.
  int status() {
    REQUIRE(seconds_to_end() < 10);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const std::string& written() const { return written_; }

 private:
  // Reads output. Returns false at its end and at the deadline.
  bool read_some(double deadline) {
    pollfd end{errors_, POLLIN, 0};
    const double left = deadline - now();
    if (left <= 0 || ::poll(&end, 1, static_cast<int>(left * 1000) + 1) == 0) return false;
    char buffer[4096];
    const auto count = ::read(errors_, buffer, sizeof buffer);
    if (count > 0) written_.append(buffer, static_cast<size_t>(count));
    return count > 0;
  }

  Shared* shared_ = nullptr;
  pid_t pid_ = -1;
  int errors_ = -1;
  std::string written_;
};

// A rank that never ends by itself and ignores requests to stop.
inline int hang(const Place&, Shared& shared) {
  ::signal(SIGTERM, SIG_IGN);
  ++shared.ready;
  for (;;) ::pause();
}

// A rank that ends on request.
inline int wait_to_stop(const Place&, Shared& shared) {
  ++shared.ready;
  for (;;) ::pause();
}

}  // namespace perigee::test
