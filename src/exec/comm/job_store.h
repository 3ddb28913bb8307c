// A job's own store for c10d's groups, instead of c10d's TCPStore: it accepts only
// processes that know the job's secret, and bounds keys, values and idle
// connections (base/network/store_server.h).
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "base/network/store_client.h"
#include "base/network/store_server.h"

namespace perigee::exec {

struct JobStoreOptions {
  std::string host = "127.0.0.1";
  int port = 0;
  int64_t rank = 0;
  std::string secret;
  // Of the first connection, and at first of each operation.
  std::chrono::milliseconds timeout = c10d::Store::kDefaultTimeout;
  // A socket that listens on the port: this process serves, and the store takes it over. -1:
  // another process serves.
  int listen_socket = -1;
};

// Any thread may call it: an operation that waits for a key blocks no other (store_client.h), and a
// clone shares connections and server but has a time-out of its own. `get`, `wait` and `multiGet`
// wait for keys and throw c10::DistStoreError after the time-out (0: none). All operations throw
// c10::DistNetworkError where the connection is lost, and Error where the store refuses them.
class JobStore : public c10d::Store {
 public:
  // Connects, until the time-out. Throws Error where the store refuses the secret or does not know
  // it, and c10::DistNetworkError where it does not answer.
  explicit JobStore(const JobStoreOptions& options);

  using c10d::Store::compareSet;
  using c10d::Store::set;

  c10::intrusive_ptr<c10d::Store> clone() override;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& wanted) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  // Waits for the keys at most as long as `timeout` says.
  store::Frame wait_for(store::Kind kind, const std::vector<std::string>& keys,
                        std::chrono::milliseconds timeout);
  store::Frame ask(store::Writer request);

  std::shared_ptr<store::Server> server_;  // of the process that serves
  std::shared_ptr<store::Client> client_;
};

}  // namespace perigee::exec
