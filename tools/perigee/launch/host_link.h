// A launcher's connection to the keeper.
#pragma once

#include <stdexcept>
#include <string>

#include "base/network/descriptor.h"
#include "base/network/store_client.h"
#include "keeper.h"

namespace perigee::command {

// The keeper does not answer.
class KeeperLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// All functions throw KeeperLost.
class HostLink {
 public:
  // Tries to connect for `patience`. Throws Error where the keeper refuses the secret or another
  // program has the port.
  HostLink(const Endpoint& keeper, const store::KeyedHash& keyed_hash,
           std::chrono::milliseconds patience);

  const Endpoint& keeper() const { return keeper_; }
  std::string settings();  // of the keeper's host
  bool formed();           // a round was formed
  void send(const Registration& registration);
  // Returns the verdict on the registration once there is one, or nothing when a signal ends
  // the wait.
  std::optional<Verdict> wait(const Registration& registration, Signals& signals);
  void leave();  // tells the keeper that this host knows that the job has ended

 private:
  store::Frame ask(store::Writer& request);
  std::string get(const std::string& key);

  Endpoint keeper_;
  store::Client client_;
};

// A process that waits for orders to the ranks of a round and writes them to a pipe, a byte each
// (Order), while the launcher watches its ranks.
class Watcher {
 public:
  Watcher(const Endpoint& keeper, const store::KeyedHash& keyed_hash, int64_t round,
          const Signals& signals);
  ~Watcher();
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  int orders() const { return orders_.get(); }

 private:
  pid_t pid_ = -1;
  Descriptor orders_;
};

}  // namespace perigee::command
