// Options of sockets, and waiting for them.
#pragma once

#include <chrono>
#include <set>

namespace perigee {

// Sends small messages at once, and finds a host that is gone within two minutes. A socket of
// another kind than TCP stays as it is.
void keep_alive(int socket);

// Returns the sockets of this process that listen for connections.
std::set<int> listening_sockets();

// Lets the system drop whatever arrives at a listening socket from now on, so that nobody connects
// any more; sockets that it has accepted stay as they are. Does nothing where the system cannot.
void drop_connections(int listening_socket);

// Returns the milliseconds until a time for poll(): rounded up, at least 0, -1 for the end of time,
// else at most an hour.
int milliseconds_until(std::chrono::steady_clock::time_point time);

}  // namespace perigee
