#include "exec/comm/rendezvous.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/fail.h"

namespace perigee::exec {
namespace {

constexpr const char* kFailureKey = "perigee/failure";
using std::chrono::milliseconds;
// How long a rank that lost the others waits: for all to say that they are there, for the
// store to answer, and for it to take the reason. Their sum is what naming a silent rank takes
// after the time-out.
constexpr milliseconds kRollCall{800}, kAnswer{1000}, kLeave{300};

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Asks the store on a thread of its own: one whose process is stopped never answers, and has no
// time-out. Returns nothing after `limit`. Throws what `question` throws.
std::optional<std::string> ask(c10d::Store& store, milliseconds limit,
                               std::function<std::string(c10d::Store&)> question) {
  auto answer = std::make_shared<std::promise<std::string>>();
  auto result = answer->get_future();
  std::thread([answer, question = std::move(question),
               kept = Store::reclaim_copy(&store)] {  // outlives the caller where it must
    try {
      answer->set_value(question(*kept));
    } catch (...) {
      answer->set_exception(std::current_exception());
    }
  })
      .detach();
  if (result.wait_for(limit) != std::future_status::ready) return std::nullopt;
  return result.get();
}

std::string failure_or(c10d::Store& store, const std::string& seen,
                       std::function<std::string(c10d::Store&)> question) {
  try {
    const auto left = ask(store, kAnswer, std::move(question));
    if (!left) return "rank 0, which has the store, does not answer";
    return left->empty() ? seen : *left;
  } catch (const std::exception&) {
    return seen + " (rank 0's store is gone, too)";
  }
}

// Returns the reason that a rank left, or which ranks are silent, or "".
std::string roll_call(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks) {
  const auto key = [](int64_t other) { return fmt::format("perigee/lost/{}", other); };
  store.set(key(rank), bytes_of("1"));
  const auto deadline = std::chrono::steady_clock::now() + kRollCall;
  std::vector<int64_t> silent;
  do {
    if (auto left = left_failure(store); !left.empty()) return left;
    silent.clear();
    for (const int64_t other : ranks) {
      if (!store.check({key(other)})) silent.push_back(other);
    }
    if (silent.empty()) return "";
    std::this_thread::sleep_for(milliseconds(20));
  } while (std::chrono::steady_clock::now() < deadline);
  return fmt::format("rank {} {} not answer", fmt::join(silent, ", "),
                     silent.size() == 1 ? "does" : "do");
}

}  // namespace

Store meet(const RendezvousOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = options.port;
  store.isServer = options.serve;
  store.numWorkers = static_cast<size_t>(options.world);
  store.waitWorkers = false;
  store.timeout = options.timeout / 3;  // of one try to connect; there are three
  if (options.listen_socket >= 0) {
    store.masterListenFd = options.listen_socket;
  }
  try {
    auto made = c10::make_intrusive<c10d::TCPStore>(options.host, store);
    made->setTimeout(options.timeout);
    // All must be here before anyone goes on: a missing rank is named now and not at
    // the first collective.
    const auto key = [](int64_t rank) { return fmt::format("perigee/rank/{}", rank); };
    made->set(key(options.rank), std::vector<uint8_t>{1});
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < options.world; ++rank) keys.push_back(key(rank));
    try {
      // The rank with the store leaves last: the others ask it who is missing.
      made->wait(keys, options.serve ? options.timeout + kRollCall / 2 : options.timeout);
    } catch (const std::exception&) {
      std::vector<int64_t> missing;
      for (int64_t rank = 0; rank < options.world; ++rank) {
        if (!made->check({keys[rank]})) missing.push_back(rank);
      }
      fail_run(
          "communicator", "all {} ranks must meet at {}:{} within {} s, but rank {} did not come",
          options.world, options.host, options.port, options.seconds(), fmt::join(missing, ", "));
    }
    return made;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (options.serve && first_line(error).find("EADDRINUSE") != std::string::npos) {
      fail_run("communicator",
               "rank {} must listen on port {}, but it is in use: free it or take another "
               "(MASTER_PORT)",
               options.rank, options.port);
    }
    fail_run("communicator", "rank {} must reach the store at {}:{} within {} s, but got: {}",
             options.rank, options.host, options.port, options.seconds(), first_line(error));
  }
}

void leave_failure(c10d::Store& store, int64_t rank, const std::string& reason) {
  const auto text = fmt::format("rank {} failed: {}", rank, reason);
  try {
    ask(store, kLeave, [text](c10d::Store& kept) {
      if (!kept.check({kFailureKey})) kept.set(kFailureKey, bytes_of(text));
      return std::string();
    });
  } catch (const std::exception&) {
    // The store is gone with rank 0, and all ranks see that by themselves.
  }
}

std::string left_failure(c10d::Store& store) {
  if (!store.check({kFailureKey})) return "";
  const auto bytes = store.get(kFailureKey);
  return {bytes.begin(), bytes.end()};
}

std::string failure_or(c10d::Store& store, const std::string& seen) {
  return failure_or(store, seen, left_failure);
}

std::string failure_among(c10d::Store& store, int64_t rank, const std::vector<int64_t>& ranks,
                          const std::string& seen) {
  return failure_or(store, seen,
                    [rank, ranks](c10d::Store& kept) { return roll_call(kept, rank, ranks); });
}

std::string first_line(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch ? torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

ListeningSocket listen_on_free_port(bool all_interfaces) {
  const auto check = [](int result, const char* what) {
    if (result < 0)
      fail_run("communicator", "{} must give a free port, but got: {}", what, std::strerror(errno));
    return result;
  };
  const int fd = check(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(all_interfaces ? INADDR_ANY : INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  check(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), "bind");
  check(::listen(fd, SOMAXCONN), "listen");
  check(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), "getsockname");
  return {fd, ntohs(address.sin_port)};
}

}  // namespace perigee::exec
