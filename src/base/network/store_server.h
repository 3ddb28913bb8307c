// The server of a job's key/value store: a thread of rank 0's process.
//
// A client reads and writes keys only after both sides have proved that they know the job's
// secret (store_message.h). The proof protects the way in: later messages are neither encrypted
// nor signed.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "base/network/store_message.h"

namespace perigee::store {

struct ServerOptions {
  int listen_socket = -1;  // listens already (Listener in address.h); the server takes it over
  KeyedHash keyed_hash;    // under the job's secret
  Limits limits;
  // Connections without a proof, and how long each may take for it. At one more the oldest is
  // closed, so that idle strangers use up neither descriptors nor memory.
  size_t strangers = 64;
  std::chrono::milliseconds handshake = std::chrono::seconds(5);
};

// Serves until its end, which closes all connections. A message that breaks the format or a limit
// ends its connection, and nothing else; a client with a proof gets the reason first.
class Server {
 public:
  // Throws Error (Status::failed) where the system has no descriptor or thread for it.
  explicit Server(ServerOptions options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perigee::store
