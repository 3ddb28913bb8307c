#include "round.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

#include "base/fail.h"
#include "base/log.h"
#include "base/network/descriptor.h"
#include "base/network/socket.h"
#include "limits.h"
#include "restarts.h"

namespace perigee::command {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLostOthers = 77;                           // exit status of a rank whose body threw
constexpr auto kGrace = std::chrono::milliseconds(1500);  // between SIGTERM and killing the others
constexpr auto kSilentGrace = std::chrono::milliseconds(100);  // for ranks that are silent

struct Rank {
  pid_t pid = -1;
  int64_t rank = 0;
  bool running = false;
};

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return fmt::format(
        "was killed by signal {} ({}){}", signal, ::strsignal(signal),
        signal == SIGKILL ? ", often the system's when memory runs out" : memory_limit(signal));
  }
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

// The message of a failed rank to the launcher, in one write.
struct Report {
  int32_t status = 1;
  int8_t lost_peers = 0;    // it failed only because it lost connection to other ranks
  int8_t silent_peers = 0;  // these did not answer in time
  int16_t told = 0;         // it has written its reason itself
  uint32_t size = 0;
  char text[PIPE_BUF - 12];
};
static_assert(sizeof(Report) == PIPE_BUF);

int report_pipe = -1;  // of this process, where it is a rank

// Sends a report of these texts; one that does not fit into the pipe is dropped: others have failed
// before. Allocates nothing: the process may be out of memory.
void send(int pipe, Report& report, std::initializer_list<std::string_view> texts) {
  for (const auto text : texts) {
    const auto size = std::min(text.size(), sizeof report.text - report.size);
    std::memcpy(report.text + report.size, text.data(), size);
    report.size += static_cast<uint32_t>(size);
  }
  [[maybe_unused]] const auto written = ::write(pipe, &report, sizeof report);
}

// The running ranks. Those that still run at its end are killed.
class Ranks {
 public:
  ~Ranks() {
    signal(SIGKILL);
    for (const auto& rank : all_) {
      if (rank.running) ::waitpid(rank.pid, nullptr, 0);
    }
  }
  void add(pid_t pid, int64_t rank) { all_.push_back({pid, rank, true}); }
  bool running() const { return std::ranges::any_of(all_, &Rank::running); }
  void signal(int number) const {
    for (const auto& rank : all_) {
      if (rank.running) ::kill(rank.pid, number);
    }
  }
  // Takes the ends of those that have ended.
  template <class Handle>
  void reap(const Handle& handle) {
    for (auto& rank : all_) {
      int status = 0;
      if (!rank.running) continue;
      const pid_t ended = ::waitpid(rank.pid, &status, WNOHANG);
      if (ended < 0 && errno != EINTR) fail_system("the launcher must see ranks end", errno);
      if (ended != rank.pid) continue;
      rank.running = false;
      handle(rank, status);
    }
  }

 private:
  std::vector<Rank> all_;
};

// The watch over the ranks until the last has ended.
class Watch {
 public:
  Watch(const RoundOptions& options, Ranks& ranks, Signals& signals, int reports)
      : stop_seconds_(options.stop_seconds),
        orders_(options.orders),
        ranks_(ranks),
        signals_(signals),
        reports_(reports) {}

  RoundEnd run() {
    while (ranks_.running()) {
      std::array<pollfd, 2> polled = {{{signals_.fd(), POLLIN, 0}, {orders_, POLLIN, 0}}};
      // poll() ignores a descriptor of -1.
      const int ready = ::poll(polled.data(), polled.size(), milliseconds_until(deadline_));
      if (ready < 0 && errno != EINTR) fail_system("the launcher must wait for ranks", errno);
      if (ready > 0 && polled[1].revents != 0) take_order();
      if (ready > 0 && polled[0].revents != 0) take_signals();
      if (Clock::now() >= deadline_) kill();
    }
    return conclude();
  }

 private:
  void kill() {
    ranks_.signal(SIGKILL);
    killed_ = true;
    deadline_ = Clock::time_point::max();
  }

  void allow_grace(Clock::duration grace = kGrace) {
    deadline_ = std::min(deadline_, Clock::now() + grace);
  }

  void allow_stop() {
    if (!stop_seconds_) return;
    allow_grace(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(*stop_seconds_)));
  }

  void take_signals() {
    while (const auto signal = signals_.take()) {
      if (*signal == SIGCHLD) continue;
      ranks_.signal(interrupted_ ? SIGKILL : SIGTERM);
      killed_ = killed_ || interrupted_;
      interrupted_ = *signal;
      allow_stop();
    }
    ranks_.reap([&](const Rank& rank, int status) {
      read_reports();
      handle_exit(rank, status);
    });
  }

  void take_order() {
    char order = 0;
    const auto got = ::read(orders_, &order, 1);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (got <= 0) {  // the watcher of the other hosts is gone: the ranks find out by themselves
      orders_ = -1;
      return;
    }
    ordered_ = true;
    if (order == static_cast<char>(Order::over)) return kill();
    ranks_.signal(SIGTERM);
    allow_stop();
  }

  // Reads the reports that have arrived.
  void read_reports() {
    Report report;
    while (::read(reports_, &report, sizeof report) == sizeof report) {
      if (report.told) {
        told_ = true;
        continue;
      }
      if (!report_ || report.lost_peers < report_->lost_peers) report_ = report;
    }
  }

  // Handles the end of a rank.
  void handle_exit(const Rank& rank, int status) {
    const bool exited = WIFEXITED(status);
    const int code = exited ? WEXITSTATUS(status) : 1;
    if (code == 0 || result_ != 0) return;
    if (exited && code == kLostOthers) {  // the report of the rank that failed is about to arrive
      lost_peers_ = true;
      allow_grace(report_ && report_->silent_peers ? kSilentGrace : kGrace);
      return;
    }
    if (!exited && (interrupted_ || ordered_)) ended_by_signal_ = true;
    if (!exited && (interrupted_ || ordered_ || killed_)) return;
    result_ = code;
    cause_ = fmt::format("rank {} {}", rank.rank, how_it_ended(status));
    // A rank that failed has told the cause; one that was killed, or ended by a library, could not.
    if (!exited || (!told_ && (!report_ || report_->lost_peers))) {
      log::write(log::Level::error,
                 fmt::format("[launch] {}; the other ranks are stopped", cause_));
      error_logged_ = true;
    }
    // A second SIGTERM would end ranks that are about to stop by themselves before they have told.
    if (!interrupted_ && !ordered_) ranks_.signal(SIGTERM);
    allow_grace();
  }

  RoundEnd conclude() const {
    auto end = cause_of_end();
    if (end.status != kStopped) return end;
    end.status = 1;
    end.stopped = true;
    return end;
  }

  RoundEnd cause_of_end() const {
    RoundEnd end{.status = result_,
                 .cause = cause_,
                 .shown = true,
                 .signal = interrupted_,
                 .ordered = ordered_};
    if (error_logged_) return end;
    const bool failed = report_ && !report_->lost_peers;
    if (!failed && interrupted_ != 0 && (ended_by_signal_ || lost_peers_)) {
      end.status = 1;
      end.cause.clear();
      end.shown = false;
    } else if (failed || (report_ && result_ == 0)) {
      end.status = report_->status;
      end.cause.assign(report_->text, report_->size);
      end.shown = false;
      end.lost_peers = !failed;
    } else if (ordered_ && result_ == 0 && (killed_ || ended_by_signal_)) {
      end.status = 1;  // the cause is another host's
      end.lost_peers = true;
    } else if (result_ == 0 && lost_peers_) {
      end.status = 1;
      end.cause = "[launch] a rank has lost the others, and could not report why";
      end.shown = false;
      end.lost_peers = true;
    }
    return end;
  }

  const std::optional<double> stop_seconds_;
  int orders_;
  Ranks& ranks_;
  Signals& signals_;
  const int reports_;

  int result_ = 0;                // of the first rank that failed by itself
  std::string cause_;             // of its end
  int interrupted_ = 0;           // the signal to the launcher
  bool ended_by_signal_ = false;  // after that, a signal ended a rank
  bool lost_peers_ = false;       // a rank ended because it lost the others
  bool told_ = false;             // a rank that failed has written its reason itself
  bool killed_ = false;           // the launcher has killed the remaining ranks
  bool error_logged_ = false;     // the launcher has logged the cause
  bool ordered_ = false;          // another host has given an order
  std::optional<Report> report_;  // of the first that failed by itself, or
                                  // of the first that lost the others
  Clock::time_point deadline_ = Clock::time_point::max();  // when it kills the remaining ranks
};

// Runs `body`; reports an error that it throws.
int run_rank(const RankBody& body, const Place& place) {
  const auto fail = [&](std::string_view what, int status) {
    const auto limit = limit_reached(what);
    const auto who = place.world > 1 ? fmt::format("rank {}: ", place.rank) : std::string();
    Report report{.status = status};
    report.lost_peers = limit.empty() && what.find("[communicator]") != std::string_view::npos;
    report.silent_peers = report.lost_peers && what.find("not answer") != std::string_view::npos;
    send(report_pipe, report, {who, what, limit});
    return report.lost_peers ? kLostOthers : status;
  };
  try {
    const int status = body(place);
    Report report{.status = status, .told = 1};
    if (status != 0) send(report_pipe, report, {});
    return status;
  } catch (const Error& error) {
    return fail(error.what(), static_cast<int>(error.status()));
  } catch (const std::bad_alloc&) {
    return fail(kOutOfMemory, 1);
  } catch (const std::system_error& error) {
    return fail(fmt::format("{} {}", kNoThread, error.what()), 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}

// Sets the variables that torchrun sets for its workers, for plugins that read them.
void set_variables(const RoundOptions& options, const Place& place) {
  const std::pair<const char*, int64_t> variables[] = {
      {"RANK", place.rank},
      {"WORLD_SIZE", place.world},
      {"LOCAL_RANK", place.local_rank},
      {"LOCAL_WORLD_SIZE", place.local_world},
      {"GROUP_RANK", options.node},
      {"GROUP_WORLD_SIZE", place.world / place.local_world},
      {"TORCHELASTIC_RESTART_COUNT", options.restarts},
  };
  for (const auto& [name, value] : variables) ::setenv(name, std::to_string(value).c_str(), 1);
}

}  // namespace

RoundEnd run_round(RoundOptions options, Signals& signals, const RankBody& body) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) fail_system("the ranks need a pipe", errno);
  const Descriptor reports(ends[0]), write_end(ends[1]);
  const pid_t launcher = ::getpid();
  Ranks ranks;
  for (int64_t local = 0; local < options.first.local_world; ++local) {
    auto place = options.first;
    place.rank += local;
    place.local_rank = local;
    place.listen_fd = place.rank == 0 ? options.listener.get() : -1;
    const pid_t pid = ::fork();
    if (pid < 0) {
      fail_system(fmt::format("{} ranks need as many processes", options.first.local_world), errno);
    }
    if (pid == 0) {
      if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != launcher) ::_exit(1);
      ::setpgid(0, 0);  // Ctrl-C reaches only the launcher, which signals the ranks
      signals.restore();
      for (const int fd : {signals.fd(), reports.get(), options.orders}) {
        if (fd >= 0) ::close(fd);
      }
      if (place.rank != 0) options.listener = {};
      set_variables(options, place);
      report_pipe = write_end.get();
      ::_exit(run_rank(body, place));
    }
    ranks.add(pid, place.rank);
  }
  options.listener = {};  // once rank 0 has ended, connecting to it fails
  return Watch(options, ranks, signals, reports.get()).run();
}

bool report_failure(std::string_view reason) {
  if (report_pipe < 0) return false;
  Report report;
  send(report_pipe, report, {reason});
  return true;
}

void show_cause(const RoundEnd& end, const std::string& lost_work) {
  if (end.shown || end.status == 0) return;
  if (end.cause.empty()) {
    log::write(log::Level::error,
               fmt::format("[launch] the ranks were ended by a signal ({}){}{}",
                           ::strsignal(end.signal), lost_work.empty() ? "" : ": ", lost_work));
  } else {
    std::fprintf(stderr, "perigee: %s\n", end.cause.c_str());
  }
}

}  // namespace perigee::command
