#include "keeper.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <map>

#include "base/fail.h"
#include "base/network/address.h"
#include "base/network/descriptor.h"
#include "base/network/store_client.h"
#include "base/network/store_server.h"
#include "limits.h"

namespace perigee::command {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using store::Kind;
using store::Reader;
using store::Writer;
constexpr milliseconds kRound{50};          // between two looks at the registrations
constexpr milliseconds kStoreAnswer{5000};  // of the store, which is in this process
constexpr milliseconds kFarewell{3000};     // for hosts to learn that the job has ended

class Service {
 public:
  Service(const KeeperOptions& options, int listener)
      : server_({.listen_socket = listener, .keyed_hash = options.keyed_hash}),
        owner_(options.owner),
        client_({.host = options.at.host,
                 .port = options.at.port,
                 .keyed_hash = options.keyed_hash,
                 .name = "the keeper",
                 .timeout = kStoreAnswer}),
        membership_(options.membership) {
    set("settings", options.settings);
  }

  // Serves until the job has ended on all hosts, or the launcher has.
  void run(pid_t launcher) {
    Clock::time_point ended = Clock::time_point::max();
    while (::getppid() == launcher) {
      take_registrations();
      for (const auto& answer : membership_.decide(Clock::now())) {
        farewells_ += answer.verdict.end;
        owner_told_ = owner_told_ || (answer.verdict.end && answer.id == owner_);
        if (membership_.formed()) set("formed", "1");
        set(fmt::format("out/{}/{}", answer.id, answer.attempt), print(answer.verdict));
      }
      publish_orders();
      if (membership_.ended()) {
        ended = std::min(ended, Clock::now() + kFarewell);
        const auto left = Reader(ask(Writer(Kind::add).text("left").number(0))).number();
        // Another host may have ended the job before this one has registered.
        const bool told = owner_told_ && membership_.done() && left >= farewells_;
        if (Clock::now() >= ended || told) return;
      }
      ::poll(nullptr, 0, static_cast<int>(kRound.count()));
    }
  }

 private:
  store::Frame ask(Writer& request) { return client_.ask(std::move(request), kStoreAnswer); }

  void set(const std::string& key, const std::string& value) {
    ask(Writer(Kind::set).text(key).text(value));
  }

  void take_registrations() {
    if (Reader(ask(Writer(Kind::check).text("in"))).number() == 0) return;
    const auto answer = ask(Writer(Kind::get).text("in"));
    const auto text = Reader(answer).text();
    for (size_t end; (end = text.find('\n', read_)) != std::string_view::npos; read_ = end + 1) {
      try {
        membership_.add(parse_registration(std::string(text.substr(read_, end - read_))),
                        Clock::now());
      } catch (const Error&) {
        // Another version's: its launcher waits in vain.
      }
    }
  }

  void publish_orders() {
    const auto& orders = membership_.orders();
    for (; published_ < orders.size(); ++published_) {
      const auto& order = orders[published_];
      set(fmt::format("stop/{}/{}", order.round, ++count_[order.round]),
          order.stop == Stop::save ? "save" : "over");
    }
  }

  store::Server server_;
  const std::string owner_;
  store::Client client_;
  Membership membership_;
  size_t read_ = 0, published_ = 0;
  std::map<int64_t, int> count_;  // orders of each round
  uint64_t farewells_ = 0;
  bool owner_told_ = false;  // that the job has ended
};

}  // namespace

Keeper::Keeper(const KeeperOptions& options, const Signals& signals) {
  const int listener = listen_at(options.at.host, options.at.port, true).socket;
  const pid_t launcher = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) {
    const int error = errno;
    ::close(listener);
    fail_system("the rendezvous of the hosts needs a process", error);
  }
  if (pid_ == 0) {
    if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != launcher) ::_exit(1);
    ::setpgid(0, 0);  // Ctrl-C reaches only the launcher
    signals.restore();
    close_all_but(listener);
    try {
      Service(options, listener).run(launcher);
      ::_exit(0);
    } catch (const std::exception&) {
      ::_exit(1);  // the launchers find that the keeper is gone
    }
  }
  ::close(listener);
}

Keeper::~Keeper() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

void Keeper::wait_for_hosts() {
  const auto deadline = Clock::now() + kFarewell + milliseconds(1000);
  while (Clock::now() < deadline) {
    const pid_t ended = ::waitpid(pid_, nullptr, WNOHANG);
    if (ended != 0) {
      pid_ = -1;
      return;
    }
    ::poll(nullptr, 0, 10);
  }
}

}  // namespace perigee::command
