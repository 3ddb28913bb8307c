// A client of a job's key/value store.
#pragma once

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/network/descriptor.h"
#include "base/network/store_message.h"

namespace perigee::store {

struct ClientOptions {
  std::string host;
  int port = 0;
  KeyedHash keyed_hash;  // under the job's secret
  std::string name;      // of this client in errors: "rank 3"
  // Of the first connection: the server may start later.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
};

// The store did not answer in time.
class TimedOut : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The connection to the store is lost.
class Lost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Any thread may call it. Each request has a connection of its own while it runs, so that a thread
// that waits for a key blocks no other; connections are kept for later requests.
class Client {
 public:
  // Connects, and repeats that until the time-out. Throws Error where the store refuses the secret
  // or does not prove that it knows it, and TimedOut, with the last reason.
  explicit Client(ClientOptions options);

  // Sends a request and returns its answer. Waits without limit where `timeout` is 0. Throws
  // TimedOut, Lost, or, where the store refuses the request, Error with its reason.
  Frame ask(Writer request, std::chrono::milliseconds timeout);

 private:
  using Time = std::chrono::steady_clock::time_point;

  Descriptor connect(Time deadline) const;
  Descriptor prove(Descriptor socket, Time deadline) const;

  const ClientOptions options_;
  std::mutex mutex_;
  std::vector<Descriptor> idle_;
};

}  // namespace perigee::store
