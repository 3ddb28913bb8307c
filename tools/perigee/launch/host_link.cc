#include "host_link.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "base/fail.h"
#include "limits.h"
#include "round.h"

namespace perigee::command {
namespace {

using std::chrono::milliseconds;
using store::Kind;
using store::Reader;
using store::Writer;
constexpr milliseconds kAnswer{2000};  // of the keeper, which answers at once
constexpr milliseconds kPause{50};     // between two looks for a verdict

}  // namespace

HostLink::HostLink(const Endpoint& keeper, const store::KeyedHash& keyed_hash,
                   milliseconds patience) try
    : keeper_(keeper),
      client_({.host = keeper.host,
               .port = keeper.port,
               .keyed_hash = keyed_hash,
               .name = "this host",
               .timeout = patience}) {
} catch (const store::TimedOut& error) {
  throw KeeperLost(error.what());
}

store::Frame HostLink::ask(Writer& request) {
  try {
    return client_.ask(std::move(request), kAnswer);
  } catch (const store::TimedOut& error) {
    throw KeeperLost(error.what());
  } catch (const store::Lost& error) {
    throw KeeperLost(error.what());
  }
}

std::string HostLink::get(const std::string& key) {
  const auto answer = ask(Writer(Kind::get).text(key));
  return std::string(Reader(answer).text());
}

std::string HostLink::settings() { return get("settings"); }

bool HostLink::formed() { return Reader(ask(Writer(Kind::check).text("formed"))).number() != 0; }

void HostLink::send(const Registration& registration) {
  ask(Writer(Kind::append).text("in").text(print(registration) + "\n"));
}

std::optional<Verdict> HostLink::wait(const Registration& registration, Signals& signals) {
  const auto key = fmt::format("out/{}/{}", registration.id, registration.attempt);
  while (Reader(ask(Writer(Kind::check).text(key))).number() == 0) {
    if (signals.wait(kPause) != 0) return std::nullopt;
  }
  return parse_verdict(get(key));
}

void HostLink::leave() { ask(Writer(Kind::add).text("left").number(1)); }

Watcher::Watcher(const Endpoint& keeper, const store::KeyedHash& keyed_hash, int64_t round,
                 const Signals& signals) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail_system("a round of several hosts needs a pipe", errno);
  orders_ = Descriptor(ends[0]);
  const Descriptor write_end(ends[1]);
  const pid_t launcher = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) fail_system("a round of several hosts needs a process", errno);
  if (pid_ > 0) return;
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != launcher) ::_exit(1);
  ::setpgid(0, 0);  // Ctrl-C reaches only the launcher
  signals.restore();
  close_all_but(write_end.get());
  try {
    store::Client client({.host = keeper.host,
                          .port = keeper.port,
                          .keyed_hash = keyed_hash,
                          .name = "this host",
                          .timeout = kAnswer});
    for (int number = 1;; ++number) {
      const auto key = fmt::format("stop/{}/{}", round, number);
      const auto answer = client.ask(std::move(Writer(Kind::get).text(key)), milliseconds(0));
      const char order = static_cast<char>(Reader(answer).text() == "save" ? Order::save
                                                                           : Order::over);
      if (::write(write_end.get(), &order, 1) != 1 || order == static_cast<char>(Order::over))
        break;
    }
  } catch (const std::exception&) {
    // The keeper is gone: the ranks find out whether their peers are.
  }
  ::_exit(0);
}

Watcher::~Watcher() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace perigee::command
