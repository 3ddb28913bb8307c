// Options of connected sockets, and waiting for them.
#pragma once

#include <chrono>

namespace perigee {

// Sends small messages at once, and finds a host that is gone within two minutes. A socket of
// another kind than TCP stays as it is.
void keep_alive(int socket);

// Returns the milliseconds until a time for poll(): rounded up, at least 0, -1 for the end of time,
// else at most an hour.
int milliseconds_until(std::chrono::steady_clock::time_point time);

}  // namespace perigee
