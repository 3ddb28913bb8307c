#include "launch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include "base/fail.h"
#include "base/log.h"
#include "base/network/address.h"
#include "base/network/store_message.h"

namespace perigee::command {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kSecretSize = 32;
constexpr int kLostOthers = 77;                           // exit status of a rank whose body threw
constexpr auto kGrace = std::chrono::milliseconds(1500);  // between SIGTERM and killing the others
constexpr auto kSilentGrace = std::chrono::milliseconds(100);  // for ranks that are silent

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

// The message of a failed rank to the launcher, in one write.
struct Report {
  int32_t status = 1;
  int16_t lost_peers = 0;    // it failed only because it lost connection to other ranks
  int16_t silent_peers = 0;  // these did not answer in time
  uint32_t size = 0;
  char text[PIPE_BUF - 12];
};
static_assert(sizeof(Report) == PIPE_BUF);

// The state of the watched ranks.
struct Watch {
  int result = 0;                // of the first rank that failed by itself
  int interrupted = 0;           // the signal to the launcher
  bool ended_by_signal = false;  // after that, a signal ended a rank
  bool lost_peers = false;       // a rank ended because it lost the others
  bool killed = false;           // the launcher has killed the remaining ranks
  bool error_logged = false;     // the launcher has logged the cause
  std::optional<Report> report;  // of the first that failed by itself, or
                                 // of the first that lost the others
  Clock::time_point deadline = Clock::time_point::max();  // when it kills the remaining ranks

  void allow_grace(Clock::duration grace = kGrace) {
    deadline = std::min(deadline, Clock::now() + grace);
  }
};

// Reads the reports that have arrived.
void read_reports(Watch& watch, int reports) {
  Report report;
  while (::read(reports, &report, sizeof report) == sizeof report) {
    if (!watch.report || report.lost_peers < watch.report->lost_peers) watch.report = report;
  }
}

// Handles the end of a rank.
void handle_exit(Watch& watch, const Rank& rank, int status, const std::vector<Rank>& ranks) {
  const bool exited = WIFEXITED(status);
  const int code = exited ? WEXITSTATUS(status) : 1;
  if (code == 0 || watch.result != 0) return;
  if (exited && code == kLostOthers) {  // the report of the rank that failed is about to arrive
    watch.lost_peers = true;
    watch.allow_grace(watch.report && watch.report->silent_peers ? kSilentGrace : kGrace);
    return;
  }
  if (!exited && watch.interrupted) watch.ended_by_signal = true;
  if (!exited && (watch.interrupted || watch.killed)) return;
  watch.result = code;
  // A rank that ended by itself has reported the cause; one that was killed could not.
  if (!exited) {
    log::write(log::Level::error, fmt::format("[launch] rank {} {}; the other ranks are stopped",
                                              rank.rank, how_it_ended(status)));
    watch.error_logged = true;
  }
  signal_all(ranks, SIGTERM);
  watch.allow_grace();
}

// Waits for all ranks. Signals arrive through `signals`, reports of failed ranks through `reports`.
Watch watch_ranks(std::vector<Rank>& ranks, int signals, int reports, Clock::duration stop_time) {
  Watch watch;
  size_t running = ranks.size();
  while (running > 0) {
    timeval wait{};
    const bool timed = watch.deadline != Clock::time_point::max();
    if (timed) {
      const auto left = std::max<int64_t>(
          0, std::chrono::duration_cast<std::chrono::microseconds>(watch.deadline - Clock::now())
                 .count());
      wait = {left / 1'000'000, left % 1'000'000};
    }
    fd_set ready;
    FD_ZERO(&ready);
    FD_SET(signals, &ready);
    if (::select(signals + 1, &ready, nullptr, nullptr, timed ? &wait : nullptr) <= 0) {
      if (timed && Clock::now() >= watch.deadline) {
        signal_all(ranks, SIGKILL);
        watch.killed = true;
        watch.deadline = Clock::time_point::max();
      }
      continue;
    }
    signalfd_siginfo info{};
    if (::read(signals, &info, sizeof info) != sizeof info) continue;
    if (info.ssi_signo != SIGCHLD) {
      signal_all(ranks, watch.interrupted ? SIGKILL : SIGTERM);
      watch.killed = watch.killed || watch.interrupted;
      watch.interrupted = static_cast<int>(info.ssi_signo);
      watch.allow_grace(stop_time);
      continue;
    }
    for (auto& rank : ranks) {
      int status = 0;
      if (!rank.running || ::waitpid(rank.pid, &status, WNOHANG) != rank.pid) continue;
      rank.running = false;
      --running;
      read_reports(watch, reports);
      handle_exit(watch, rank, status, ranks);
    }
  }
  return watch;
}

// Runs `body`; writes an error that it throws to `reports`.
int run_rank(const std::function<int(const Place&)>& body, const Place& place, int reports) {
  const auto send = [&](std::string_view what, int status) {
    const auto text = place.world > 1 ? fmt::format("rank {}: {}", place.rank, what)
                                      : std::string(what);
    Report report{.status = status,
                  .size = static_cast<uint32_t>(std::min(text.size(), sizeof report.text))};
    report.lost_peers = what.find("[communicator]") != std::string_view::npos;
    report.silent_peers = report.lost_peers && what.find("not answer") != std::string_view::npos;
    std::memcpy(report.text, text.data(), report.size);
    [[maybe_unused]] const auto written = ::write(reports, &report, sizeof report);
    return report.lost_peers ? kLostOthers : status;
  };
  try {
    return body(place);
  } catch (const Error& error) {
    return send(error.what(), static_cast<int>(error.status()));
  } catch (const std::exception& error) {
    return send(error.what(), 1);
  }
}

// Prints one message: of the first rank that failed by itself. Returns the exit status.
int conclude(const Watch& watch, const std::string& lost_work) {
  if (watch.error_logged) return watch.result;
  const bool failed = watch.report && !watch.report->lost_peers;
  if (!failed && watch.interrupted && (watch.ended_by_signal || watch.lost_peers)) {
    log::write(log::Level::error, fmt::format("[launch] the ranks were ended by a signal ({}){}{}",
                                              ::strsignal(watch.interrupted),
                                              lost_work.empty() ? "" : ": ", lost_work));
    return 1;
  }
  if (failed || (watch.report && watch.result == 0)) {
    std::fprintf(stderr, "perigee: %.*s\n", static_cast<int>(watch.report->size),
                 watch.report->text);
    return watch.report->status;
  }
  return watch.result;
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
  // The ranks of one host get the secret with the memory of this process.
  const auto secret = options.secret.empty() && !several_nodes ? store::random_bytes(kSecretSize)
                                                               : options.secret;
  int listener = -1;
  if (options.node_rank == 0) {
    const auto listening = listen_at(rendezvous.host, rendezvous.port, several_nodes);
    listener = listening.socket;
    rendezvous.port = listening.port;
  }

  int reports[2];
  if (::pipe2(reports, O_CLOEXEC | O_NONBLOCK) != 0)
    fail_run("launch", "ranks need a pipe, but: {}", std::strerror(errno));
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
                .port = rendezvous.port,
                .interface = options.interface,
                .secret = secret};
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
      ::setpgid(0, 0);  // Ctrl-C reaches only the launcher, which signals the ranks
      ::sigprocmask(SIG_SETMASK, &before, nullptr);
      ::close(signals);
      if (place.rank != 0 && listener >= 0) ::close(listener);
      ::_exit(run_rank(body, place, reports[1]));
    }
    ranks.push_back({pid, place.rank, true});
  }
  if (listener >= 0) ::close(listener);
  const auto stop_time = std::chrono::duration<double>(options.stop_seconds);
  const auto watch = watch_ranks(ranks, signals, reports[0],
                                 std::chrono::duration_cast<Clock::duration>(stop_time));
  ::close(signals);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  for (const int end : reports) ::close(end);
  return conclude(watch, options.lost_work);
}

}  // namespace perigee::command
