#include "base/network/address.h"

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/fail.h"

namespace perigee {
namespace {

struct Endpoint {
  sockaddr_storage storage{};
  socklen_t size = 0;

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  void set_port(int port) {
    const auto number = htons(static_cast<uint16_t>(port));
    if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage)->sin_port = number;
    if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = number;
  }
};

std::string numeric(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  if (::getnameinfo(address, size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) return "";
  return text;
}

// Returns the first endpoint of the host, IPv4 before IPv6. Sets `reason` where the host has none.
std::optional<Endpoint> find_endpoint(const std::string& host, std::string& reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    reason = ::gai_strerror(error);
    return std::nullopt;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, ::freeaddrinfo);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const auto* one = found; one; one = one->ai_next) {
      if (one->ai_family != family) continue;
      Endpoint endpoint;
      std::memcpy(&endpoint.storage, one->ai_addr, one->ai_addrlen);
      endpoint.size = one->ai_addrlen;
      return endpoint;
    }
  }
  reason = "it has no address";
  return std::nullopt;
}

Endpoint endpoint_of(const std::string& host) {
  std::string reason;
  const auto endpoint = find_endpoint(host, reason);
  if (!endpoint) {
    fail_run("network", "the host name \"{}\" must resolve to an address, but got: {}", host,
             reason);
  }
  return *endpoint;
}

Endpoint all_addresses() {
  Endpoint endpoint;
  auto* address = reinterpret_cast<sockaddr_in*>(&endpoint.storage);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_ANY);
  endpoint.size = sizeof(sockaddr_in);
  return endpoint;
}

// Returns a socket that listens at the endpoint, or -1 with errno.
int try_to_listen(const Endpoint& endpoint) {
  const int fd = ::socket(endpoint.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1;
  if (::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      ::bind(fd, endpoint.get(), endpoint.size) == 0 && ::listen(fd, 1024) == 0) {
    return fd;
  }
  const int error = errno;
  ::close(fd);
  errno = error;
  return -1;
}

}  // namespace

Listener listen_at(const std::string& host, int port, bool other_hosts) {
  std::string reason;
  auto endpoint = find_endpoint(host, reason);
  const bool own_name = endpoint && !is_loopback(host) &&
                        is_loopback(numeric(endpoint->get(), endpoint->size));
  if (!endpoint || (other_hosts && own_name)) endpoint = all_addresses();
  endpoint->set_port(port);
  int fd = try_to_listen(*endpoint);
  if (fd < 0 && errno == EADDRNOTAVAIL) {
    endpoint = all_addresses();
    endpoint->set_port(port);
    fd = try_to_listen(*endpoint);
  }
  if (fd >= 0 && ::getsockname(fd, endpoint->get(), &endpoint->size) == 0) {
    const auto number = endpoint->family() == AF_INET6
                            ? reinterpret_cast<sockaddr_in6*>(&endpoint->storage)->sin6_port
                            : reinterpret_cast<sockaddr_in*>(&endpoint->storage)->sin_port;
    return {fd, ntohs(number)};
  }
  const int error = errno;
  if (fd >= 0) ::close(fd);
  fail_run("network",
           "rank 0 must listen on port {} of {}, but got: {}; free the port or take another "
           "(--rendezvous, or MASTER_PORT under another launcher)",
           port, host, error == EADDRINUSE ? "it is in use" : std::strerror(error));
}

std::string resolve(const std::string& host) {
  const auto endpoint = endpoint_of(host);
  return numeric(endpoint.get(), endpoint.size);
}

std::string local_address_towards(const std::string& address) {
  auto endpoint = endpoint_of(address);
  endpoint.set_port(9);  // any: a datagram socket that connects sends nothing
  const int fd = ::socket(endpoint.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  Endpoint local;
  local.size = sizeof local.storage;
  const bool found = fd >= 0 && ::connect(fd, endpoint.get(), endpoint.size) == 0 &&
                     ::getsockname(fd, local.get(), &local.size) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!found) {
    fail_run("network", "this machine must have a route to {}, but got: {}", address,
             std::strerror(error));
  }
  return numeric(local.get(), local.size);
}

bool is_own_address(const std::string& host) {
  std::string reason;
  const auto endpoint = find_endpoint(host, reason);
  if (!endpoint) return false;
  // Only own addresses can be bound.
  const int fd = ::socket(endpoint->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool own = fd >= 0 && ::bind(fd, endpoint->get(), endpoint->size) == 0;
  if (fd >= 0) ::close(fd);
  return own;
}

bool is_loopback(const std::string& address) {
  in_addr four{};
  if (::inet_pton(AF_INET, address.c_str(), &four) == 1) {
    return ntohl(four.s_addr) >> 24 == IN_LOOPBACKNET;
  }
  in6_addr six{};
  return ::inet_pton(AF_INET6, address.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

std::string address_of_interface(const std::string& name) {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) {
    fail_run("network", "the network interfaces must be readable, but got: {}",
             std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(found, ::freeifaddrs);
  std::map<int, std::string> by_family;
  std::set<std::string> names;
  for (const auto* one = found; one; one = one->ifa_next) {
    const int family = one->ifa_addr ? one->ifa_addr->sa_family : AF_UNSPEC;
    if (family != AF_INET && family != AF_INET6) continue;
    names.insert(one->ifa_name);
    if (name != one->ifa_name) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    by_family.emplace(family, numeric(one->ifa_addr, size));
  }
  if (by_family.empty()) {
    fail("network", "the interface must have an address (one of {}), but got \"{}\"",
         fmt::join(names, ", "), name);
  }
  const auto four = by_family.find(AF_INET);
  return four != by_family.end() ? four->second : by_family.begin()->second;
}

}  // namespace perigee
