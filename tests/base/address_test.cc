// Addresses of this machine, and sockets that listen on them.
#include "base/network/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "base/error.h"

using namespace perigee;
using Catch::Contains;

namespace {

// Returns the address on which the socket listens.
std::string bound_address(int socket) {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  REQUIRE(::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  char text[INET_ADDRSTRLEN];
  return ::inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
}

}  // namespace

TEST_CASE("a socket listens only on the address of its host") {
  const auto local = listen_at("127.0.0.1", 0, false);
  CHECK(local.port > 0);
  CHECK(bound_address(local.socket) == "127.0.0.1");
  const auto debian = listen_at("127.0.1.1", 0, true);
  CHECK(bound_address(debian.socket) == "127.0.1.1");
  ::close(local.socket);
  ::close(debian.socket);
}

TEST_CASE("a host name that resolves to a loopback address is reachable from other hosts") {
  const auto open = listen_at("localhost", 0, true);
  CHECK(bound_address(open.socket) == "0.0.0.0");
  ::close(open.socket);
  // An address of another machine, of TEST-NET-1: a job's name for a host behind a proxy.
  const auto foreign = listen_at("192.0.2.1", 0, true);
  CHECK(bound_address(foreign.socket) == "0.0.0.0");
  ::close(foreign.socket);
}

TEST_CASE("a port in use is an error that names it") {
  const auto taken = listen_at("127.0.0.1", 0, false);
  CHECK_THROWS_WITH(listen_at("127.0.0.1", taken.port, false),
                    Contains(std::to_string(taken.port)) && Contains("in use"));
  ::close(taken.socket);
}

TEST_CASE("the local address is that of the route") {
  CHECK(local_address_towards("127.0.0.1") == "127.0.0.1");
  CHECK(is_loopback(local_address_towards("127.0.1.1")));
  CHECK(is_loopback("127.0.1.1"));
  CHECK(is_loopback("::1"));
  CHECK_FALSE(is_loopback("10.0.0.1"));
  CHECK_FALSE(is_loopback("host"));
  CHECK(resolve("127.0.0.1") == "127.0.0.1");
  CHECK_THROWS_WITH(resolve("no-such-host.invalid"), Contains("no-such-host.invalid"));
}

TEST_CASE("an interface without an address is an error that lists the others") {
  CHECK(address_of_interface("lo") == "127.0.0.1");
  CHECK_THROWS_WITH(address_of_interface("eth99"), Contains("eth99") && Contains("lo"));
}
