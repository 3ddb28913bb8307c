#include "hosts.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "base/fail.h"
#include "base/log_format.h"
#include "base/network/address.h"
#include "host_link.h"
#include "limits.h"
#include "restarts.h"

namespace perigee::command {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
constexpr milliseconds kProbe{500};        // for a keeper to answer
constexpr milliseconds kPrecedence{1000};  // that a host lets each earlier one have
constexpr milliseconds kGlance{100};       // likewise, where there should be none
constexpr milliseconds kLookPause{100};
constexpr milliseconds kLastCall{30'000};

milliseconds to_milliseconds(double seconds) {
  return milliseconds(static_cast<int64_t>(seconds * 1000));
}

std::string host_name() {
  char name[256] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return "unknown";
  return name;
}

// This host's part in the job.
class Host {
 public:
  Host(const LaunchOptions& options, const std::vector<Endpoint>& rendezvous)
      : options_(options),
        rendezvous_(rendezvous),
        own_(own_endpoint()),
        one_{.id = random_id(),
             .name = host_name(),
             .ranks = options.ranks,
             .node_rank = options.node_rank} {}

  int run(const RankBody& body) {
    for (;;) {
      const auto verdict = register_for_round();
      if (!verdict || verdict->end) {
        if (keeper_) keeper_->wait_for_hosts();
        return verdict ? take_leave(*verdict) : ended_by_signal();
      }
      if (!verdict->note.empty()) log::warn("[launch] {}", verdict->note);
      one_.restarts = verdict->restarts;
      one_.job = verdict->job;
      last_ = run_ranks(*verdict, body);
      one_.trained = true;
      one_.outcome = outcome_of(last_);
      if (one_.outcome.kind == Outcome::Kind::failed && !last_.shown && !last_.cause.empty()) {
        log::warn("[launch] {}", last_.cause);
      }
    }
  }

 private:
  // Returns the number of the endpoint at which this host may be the keeper.
  std::optional<size_t> own_endpoint() const {
    if (options_.node_rank >= 0) {
      const auto index = static_cast<size_t>(options_.node_rank);
      return index < rendezvous_.size() ? std::optional(index) : std::nullopt;
    }
    for (size_t i = 0; i < rendezvous_.size(); ++i) {
      if (is_own_address(rendezvous_[i].host)) return i;
    }
    return std::nullopt;
  }

  KeeperOptions keeper_options() const {
    const auto timeout = to_milliseconds(options_.timeout_seconds);
    return {
        .at = rendezvous_[*own_],
        .owner = one_.id,
        .keyed_hash = options_.agreement.keyed_hash,
        .settings = options_.agreement.settings,
        .membership = {.least = options_.least_nodes > 0 ? options_.least_nodes : options_.nodes,
                       .most = options_.nodes,
                       .ranks = options_.ranks,
                       .max_restarts = options_.max_restarts,
                       .backoff_seconds = options_.backoff_seconds,
                       .timeout = timeout,
                       .last_call = std::min(timeout, kLastCall)}};
  }

  std::unique_ptr<HostLink> connect(size_t endpoint, milliseconds patience) const {
    try {
      return std::make_unique<HostLink>(rendezvous_[endpoint], options_.agreement.keyed_hash,
                                        patience);
    } catch (const KeeperLost&) {
      return nullptr;
    }
  }

  // Returns a link to the keeper, which may be this host; nothing after a signal.
  std::unique_ptr<HostLink> find_keeper() {
    const auto begin = Clock::now();
    const auto deadline = begin + to_milliseconds(options_.timeout_seconds);
    for (bool first = true;; first = false) {
      if (keeper_) {
        // Another host may have taken over while this one stood still.
        for (size_t i = 0; i < rendezvous_.size(); ++i) {
          auto link = i == own_ ? nullptr : connect(i, kGlance);
          if (!link || !link->formed()) continue;
          keeper_.reset();
          return link;
        }
        if (auto link = connect(*own_, kProbe)) return link;
        keeper_.reset();
      }
      for (size_t i = 0; i < rendezvous_.size(); ++i) {
        if (i == own_) continue;
        if (auto link = connect(i, kProbe)) return link;
      }
      // Others agree on an end without this host.
      if (one_.outcome.kind == Outcome::Kind::final) {
        throw KeeperLost("no host of the rendezvous answers");
      }
      if (first && one_.trained) log::warn("[launch] the host of the rendezvous does not answer");
      if (own_ && Clock::now() >= begin + static_cast<int>(*own_) * kPrecedence) {
        if (one_.trained) log::warn("[launch] this host takes over the rendezvous");
        keeper_ = std::make_unique<Keeper>(keeper_options(), signals_);
        continue;
      }
      if (signals_.wait(kLookPause)) return nullptr;
      if (Clock::now() >= deadline) fail_alone();
    }
  }

  [[noreturn]] void fail_alone() const {
    fail_run("launch",
             "a host of --rendezvous ({}) must answer within {} s, but none does: it decides which "
             "hosts train, and is the one with such an address or the --node-rank of one; with "
             "several addresses (A:PORT,B:PORT) another takes over",
             options_.rendezvous, options_.timeout_seconds);
  }

  // Registers and returns the verdict; nothing after a signal.
  std::optional<Verdict> register_for_round() {
    for (;;) {
      try {
        auto link = find_keeper();
        if (!link) return std::nullopt;
        check_settings(*link);
        listen(*link);
        ++one_.attempt;
        link->send(one_);
        if (!one_.trained) {
          log::info("[launch] this host waits for the others at {}:{}", link->keeper().host,
                    link->keeper().port);
        }
        auto verdict = link->wait(one_, signals_);
        if (!verdict) say_goodbye(*link);
        if (verdict && verdict->end) link->leave();
        link_ = link->keeper();
        return verdict;
      } catch (const KeeperLost&) {
        // Where this host's job is done, there is nothing to agree on.
        if (one_.outcome.kind == Outcome::Kind::final) {
          return Verdict{.end = true, .status = one_.outcome.status, .mine = true};
        }
      }
    }
  }

  // Tells the others that a signal has ended this host's command.
  void say_goodbye(HostLink& link) {
    ++one_.attempt;
    one_.outcome = {Outcome::Kind::final, 1, "ended by a signal"};
    link.send(one_);
    link.leave();
  }

  // Throws Error where this host has another job than the keeper's.
  void check_settings(HostLink& link) {
    const auto difference = options_.agreement.difference(link.settings());
    if (difference.empty()) return;
    if (!link.formed()) {  // nobody trains yet: the user corrects the command on all hosts
      ++one_.attempt;
      one_.outcome = {Outcome::Kind::final, 2, "[job] " + difference};
      link.send(one_);
      link.leave();
      if (keeper_) keeper_->wait_for_hosts();
    }
    fail("job", "{}", difference);
  }

  // Opens a socket for the store of the ranks, should this host have rank 0.
  void listen(const HostLink& link) {
    const auto& keeper = link.keeper().host;
    if (!options_.interface.empty()) {
      one_.address = address_of_interface(options_.interface);
    } else if (keeper_) {
      one_.address = keeper;  // others reach this host so
    } else {
      one_.address = local_address_towards(resolve(keeper));
    }
    const auto listening = listen_at(one_.address, 0, true);
    listener_ = Descriptor(listening.socket);
    one_.port = listening.port;
  }

  RoundEnd run_ranks(const Verdict& verdict, const RankBody& body) {
    const Watcher watcher(*link_, options_.agreement.keyed_hash, verdict.round, signals_);
    RoundOptions round{.node = verdict.node,
                       .restarts = verdict.restarts,
                       .listener = verdict.node == 0 ? std::move(listener_) : Descriptor(),
                       .stop_seconds = options_.stop_seconds,
                       .orders = watcher.orders()};
    listener_ = {};
    round.first = {.rank = verdict.node * options_.ranks,
                   .world = verdict.nodes * options_.ranks,
                   .local_world = options_.ranks,
                   .host = verdict.host,
                   .port = verdict.port,
                   .interface = options_.interface,
                   .secret = options_.secret};
    options_.before_round(verdict.job, verdict.again);
    return run_round(std::move(round), signals_, body);
  }

  static Outcome outcome_of(const RoundEnd& end) {
    using Kind = Outcome::Kind;
    if (end.status == 0) return {Kind::final, 0, "done"};
    if (end.signal) {
      return {Kind::final, 1, fmt::format("ended by a signal ({})", ::strsignal(end.signal))};
    }
    if (end.stopped) return {Kind::saved, end.status, end.cause, true};
    if (end.ordered && end.lost_peers) return {Kind::failed, end.status, end.cause, true};
    const bool mend = may_mend(end.status);
    return {mend ? Kind::failed : Kind::final, end.status, end.cause, end.lost_peers};
  }

  // Says why the job has ended and returns the exit status.
  int take_leave(const Verdict& verdict) {
    if (verdict.mine || (verdict.status == 0 && last_.status != 0)) {
      show_cause(last_, options_.lost_work);
      return last_.status;
    }
    if (verdict.status != 0) std::fprintf(stderr, "perigee: %s\n", verdict.text.c_str());
    return verdict.status;
  }

  int ended_by_signal() {
    show_cause({.status = 1, .signal = SIGTERM}, options_.lost_work);
    return 1;
  }

  const LaunchOptions& options_;
  const std::vector<Endpoint>& rendezvous_;
  const std::optional<size_t> own_;
  Signals signals_;
  std::unique_ptr<Keeper> keeper_;  // where this host has it
  std::optional<Endpoint> link_;    // of the keeper that formed the round
  Descriptor listener_;
  Registration one_;
  RoundEnd last_;
};

}  // namespace

std::string random_id() {
  std::string text;
  for (const char byte : store::random_bytes(8)) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::vector<Endpoint> parse_rendezvous(const std::string& text) {
  std::vector<Endpoint> result;
  for (size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(',', at), text.size());
    const auto one = text.substr(at, end - at);
    const auto colon = one.rfind(':');
    char* rest = nullptr;
    const auto port = colon == std::string::npos ? 0
                                                 : std::strtol(one.c_str() + colon + 1, &rest, 10);
    if (colon == 0 || port <= 0 || port > 65535 || *rest != '\0') {
      fail("launch", "--rendezvous must be HOST:PORT of node 0, but got \"{}\"", text);
    }
    result.push_back({one.substr(0, colon), static_cast<int>(port)});
    at = end + 1;
  }
  return result;
}

int launch_on_hosts(const LaunchOptions& options, const std::vector<Endpoint>& rendezvous,
                    const RankBody& body) {
  return Host(options, rendezvous).run(body);
}

}  // namespace perigee::command
