#include "exec/rendezvous.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "base/error.h"

namespace perigee::exec {
namespace {

constexpr const char* kFailureKey = "perigee/failure";

}  // namespace

Store meet(const RendezvousOptions& options) {
  c10d::TCPStoreOptions store;
  store.port = options.port;
  store.isServer = options.serve;
  store.numWorkers = static_cast<size_t>(options.world);
  store.waitWorkers = false;
  store.timeout = options.timeout;
  if (options.listen_socket >= 0) {
    store.masterListenFd = options.listen_socket;
  }
  try {
    auto made = c10::make_intrusive<c10d::TCPStore>(options.host, store);
    // All must be here before anyone goes on: a missing rank is named now and not at the first
    // collective.
    const auto key = [](int64_t rank) { return fmt::format("perigee/rank/{}", rank); };
    made->set(key(options.rank), std::vector<uint8_t>{1});
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < options.world; ++rank) keys.push_back(key(rank));
    try {
      made->wait(keys, options.timeout);
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
    fail_run("communicator", "rank {} must reach the store at {}:{} within {} s, but got: {}",
             options.rank, options.host, options.port, options.seconds(), first_line(error));
  }
}

void leave_failure(c10d::Store& store, int64_t rank, const std::string& reason) {
  const auto text = fmt::format("rank {} failed: {}", rank, reason);
  try {
    if (!store.check({kFailureKey}))
      store.set(kFailureKey, std::vector<uint8_t>(text.begin(), text.end()));
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
  try {
    const auto left = left_failure(store);
    return left.empty() ? seen : left;
  } catch (const std::exception&) {
    return seen + " (rank 0's store is gone, too)";
  }
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
