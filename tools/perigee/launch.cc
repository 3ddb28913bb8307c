#include "launch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace perigee::command {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kGrace =
    std::chrono::milliseconds(1500);  // between asking a rank to stop and killing it

// Returns a socket that listens on 127.0.0.1 (port 0) or on all addresses, and its port.
std::pair<int, int> listen_on(int port, bool all_addresses) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(all_addresses ? INADDR_ANY : INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int on = 1;
  socklen_t size = sizeof address;
  if (fd < 0 || ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 1024) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    const std::string why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
    throw Error(
        Status::failed, "launch",
        fmt::format(
            "rank 0 must listen on port {}, but: {}; free it or take another with --rendezvous",
            port, why));
  }
  return {fd, ntohs(address.sin_port)};
}

struct Rendezvous {
  std::string host = "127.0.0.1";
  int port = 0;
};

Rendezvous parse_rendezvous(const std::string& text) {
  const auto colon = text.rfind(':');
  Rendezvous result;
  if (colon != std::string::npos && colon > 0) {
    char* end = nullptr;
    const auto port = std::strtol(text.c_str() + colon + 1, &end, 10);
    if (*end == '\0' && port > 0 && port < 65536) {
      result.host = text.substr(0, colon);
      result.port = static_cast<int>(port);
      return result;
    }
  }
  fail("launch", "--rendezvous must be HOST:PORT of node 0, but got \"{}\"", text);
}

struct Rank {
  pid_t pid = -1;
  int64_t rank = 0;
  bool running = false;
};

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return fmt::format("was killed by signal {} ({}){}", signal, ::strsignal(signal),
                       signal == SIGKILL ? ", often the system's when memory runs out" : "");
  }
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

void signal_all(const std::vector<Rank>& ranks, int signal) {
  for (const auto& rank : ranks) {
    if (rank.running) ::kill(rank.pid, signal);
  }
}

// Waits for all ranks. Signals arrive through `signals`.
int watch(std::vector<Rank>& ranks, int signals) {
  size_t running = ranks.size();
  int result = 0;
  bool interrupted = false;
  Clock::time_point deadline = Clock::time_point::max();
  while (running > 0) {
    timeval wait{};
    const bool timed = deadline != Clock::time_point::max();
    if (timed) {
      const auto left = std::max<int64_t>(
          0,
          std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count());
      wait = {left / 1'000'000, left % 1'000'000};
    }
    fd_set ready;
    FD_ZERO(&ready);
    FD_SET(signals, &ready);
    if (::select(signals + 1, &ready, nullptr, nullptr, timed ? &wait : nullptr) <= 0) {
      if (timed && Clock::now() >= deadline) {
        signal_all(ranks, SIGKILL);
        deadline = Clock::time_point::max();
      }
      continue;
    }
    signalfd_siginfo info{};
    if (::read(signals, &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo != SIGCHLD) {
      signal_all(ranks, interrupted ? SIGKILL : SIGTERM);
      if (!interrupted) deadline = Clock::now() + kGrace;
      interrupted = true;
      if (result == 0) result = 1;
      continue;
    }
    for (auto& rank : ranks) {
      int status = 0;
      if (!rank.running || ::waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
      rank.running = false;
      --running;
      const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
      if (code == 0 || interrupted) continue;
      const bool by_peer = code == kStoppedByPeer;
      if (result == 0 || result == kStoppedByPeer) {
        const bool first = result == 0;
        result = code;
        if (!first || by_peer) {
          if (first) deadline = Clock::now() + kGrace;  // the rank that failed is about to say why
          continue;
        }
      } else {
        continue;
      }
      // A rank that ended by itself has told why; one that was killed could not.
      if (WIFSIGNALED(status)) {
        log::write(log::Level::error,
                   fmt::format("[launch] rank {} {}; the other ranks are stopped", rank.rank,
                               how_it_ended(status)));
      }
      signal_all(ranks, SIGTERM);
      deadline = Clock::now() + kGrace;
    }
  }
  if (result != kStoppedByPeer) return result;
  log::write(log::Level::error,
             "[launch] the ranks lost their connections to each other, and none says why");
  return 1;
}

}  // namespace

int launch(const LaunchOptions& options, const std::function<int(const Place&)>& body) {
  const bool several_nodes = options.nodes > 1;
  if (several_nodes && options.rendezvous.empty()) {
    fail("launch", "several nodes need --rendezvous HOST:PORT of node 0, but there is none");
  }
  if (options.node_rank < 0 || options.node_rank >= options.nodes) {
    fail("launch", "--node-rank must be from 0 to {}, but got {}", options.nodes - 1,
         options.node_rank);
  }
  Rendezvous rendezvous;
  if (!options.rendezvous.empty()) rendezvous = parse_rendezvous(options.rendezvous);
  int listener = -1;
  if (options.node_rank == 0) {
    std::tie(listener, rendezvous.port) = listen_on(rendezvous.port, several_nodes);
  }

  sigset_t blocked, before;
  sigemptyset(&blocked);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&blocked, signal);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const int signals = ::signalfd(-1, &blocked, SFD_CLOEXEC);
  const pid_t launcher = ::getpid();

  std::vector<Rank> ranks;
  for (int64_t local = 0; local < options.ranks; ++local) {
    Place place{.rank = options.node_rank * options.ranks + local,
                .world = options.nodes * options.ranks,
                .local_rank = local,
                .local_world = options.ranks,
                .host = rendezvous.host,
                .port = rendezvous.port};
    if (place.rank == 0) place.listen_fd = listener;
    const pid_t pid = ::fork();
    if (pid < 0) {
      signal_all(ranks, SIGKILL);
      fail_run("launch", "{} ranks need as many processes, but: {}", options.ranks,
               std::strerror(errno));
    }
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != launcher) ::_exit(1);
      ::setpgid(0, 0);  // Ctrl-C reaches the launcher alone, which tells the ranks
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      ::close(signals);
      if (place.rank != 0 && listener >= 0) ::close(listener);
      ::_exit(body(place));
    }
    ranks.push_back({pid, place.rank, true});
  }
  if (listener >= 0) ::close(listener);
  const int result = watch(ranks, signals);
  ::close(signals);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  return result;
}

}  // namespace perigee::command
