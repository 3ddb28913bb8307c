// A cable between two network namespaces that delays and loses packets.
#pragma once

#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <new>
#include <random>
#include <string>

#include "tests/command/support.h"

namespace perigee::test {

// What happens to the packets of the first host; those of the second arrive at once.
struct Cable {
  double delay_seconds = 0;
  double loss = 0;  // share of the packets

  bool slow() const { return delay_seconds > 0 || loss > 0; }
};

// A process that carries packets between two TUN devices, one in each namespace. `tc netem` needs a
// module of the kernel that few small kernels have; this needs /dev/net/tun.
class SlowCable {
 public:
  struct End {
    std::string name_space, device;
  };

  SlowCable(const Cable& cable, const End& first, const End& second) {
    void* memory = ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    counts_ = new (memory) Counts;
    int opened[2];
    if (::pipe2(opened, O_CLOEXEC) != 0) return;
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (const int number : {SIGTERM, SIGINT, SIGHUP}) ::signal(number, SIG_DFL);
      const int ends[2] = {open_end(first), open_end(second)};
      if (ends[0] >= 0 && ends[1] >= 0 && ::write(opened[1], "", 1) == 1) {
        ::close(opened[1]);
        carry(cable, ends, *counts_);
      }
      ::_exit(1);
    }
    ::close(opened[1]);
    char byte;
    ready_ = ::read(opened[0], &byte, 1) == 1;
    ::close(opened[0]);
  }
  ~SlowCable() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
    }
    if (counts_) ::munmap(counts_, sizeof(Counts));
  }
  SlowCable(const SlowCable&) = delete;
  SlowCable& operator=(const SlowCable&) = delete;

  bool ready() const { return ready_; }  // both devices exist
  int delayed() const { return counts_->delayed; }
  int lost() const { return counts_->lost; }

 private:
  struct Counts {
    std::atomic<int> delayed{0}, lost{0};
  };
  struct Packet {
    double due;
    std::string bytes;
  };

  // Returns a new TUN device, or -1.
  static int open_end(const End& end) {
    const int space = ::open(("/var/run/netns/" + end.name_space).c_str(), O_RDONLY | O_CLOEXEC);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) return -1;
    // The device belongs to the namespace in which this file is opened.
    const int device = ::open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    ifreq request{};
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    std::snprintf(request.ifr_name, sizeof request.ifr_name, "%s", end.device.c_str());
    return device >= 0 && ::ioctl(device, TUNSETIFF, &request) == 0 ? device : -1;
  }

  // Carries packets until this process is killed.
  [[noreturn]] static void carry(const Cable& cable, const int (&ends)[2], Counts& counts) {
    std::minstd_rand random(1);
    std::bernoulli_distribution is_lost(cable.loss);
    std::deque<Packet> packets;
    char buffer[65536];
    for (;;) {
      pollfd polled[2] = {{ends[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
      const double left = packets.empty() ? 1 : std::max(0.0, packets.front().due - now());
      ::poll(polled, 2, static_cast<int>(left * 1000) + 1);
      for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) {
        const bool lose = is_lost(random);
        ++(lose ? counts.lost : counts.delayed);
        if (!lose) packets.push_back({now() + cable.delay_seconds, {buffer, buffer + n}});
      }
      for (ssize_t n; (n = ::read(ends[1], buffer, sizeof buffer)) > 0;) send(ends[0], buffer, n);
      for (; !packets.empty() && packets.front().due <= now(); packets.pop_front()) {
        send(ends[1], packets.front().bytes.data(), std::ssize(packets.front().bytes));
      }
    }
  }
  static void send(int end, const char* bytes, ssize_t count) {
    // A device that takes no packet loses it, as any network may.
    [[maybe_unused]] const auto sent = ::write(end, bytes, static_cast<size_t>(count));
  }

  Counts* counts_ = nullptr;
  pid_t pid_ = -1;
  bool ready_ = false;
};

}  // namespace perigee::test
