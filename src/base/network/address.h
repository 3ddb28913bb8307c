// Addresses under which the processes of a job reach each other.
#pragma once

#include <string>

namespace perigee {

// A TCP socket that listens, and its port. The owner closes it.
struct Listener {
  int socket = -1;
  int port = 0;
};

// Returns a socket that listens on `port` (0: any free one) of the address to which `host` resolves
// on this machine. It listens on all addresses where that is no address of this machine, and where
// `other_hosts` must reach a name that resolves to a loopback address: Debian resolves a machine's
// own name to 127.0.1.1. Throws Error (Status::failed) with the system's reason.
Listener listen_at(const std::string& host, int port, bool other_hosts);

// Returns the first numeric address of a host, IPv4 before IPv6. Throws Error (Status::failed)
// where the name does not resolve.
std::string resolve(const std::string& host);

// Returns the numeric address of this machine on the route to a numeric address. Sends nothing.
// Throws Error (Status::failed) where there is no route.
std::string local_address_towards(const std::string& address);

// Returns whether the first address of a host is one of this machine. False where it has none.
bool is_own_address(const std::string& host);

// Returns whether a numeric address is one of the loopback interface (127.0.0.0/8, ::1).
bool is_loopback(const std::string& address);

// Returns the numeric address of a network interface ("eth0"), IPv4 before IPv6. Throws Error
// listing the interfaces that have addresses.
std::string address_of_interface(const std::string& name);

}  // namespace perigee
