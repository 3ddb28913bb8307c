// Requests of a store's clients, answered from its table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/network/store_message.h"
#include "base/network/store_table.h"

namespace perigee::store {

using ClientId = uint64_t;

// An answer to a client: a frame.
struct Answer {
  ClientId client = 0;
  std::string frame;
  bool last = false;  // an error: it ends the client's connection
};

class Requests {
 public:
  explicit Requests(const Limits& limits) : limits_(limits), table_(limits) {}

  // Carries out a request of a client that does not wait. Returns its answer, unless it waits for
  // keys, and those of the requests that waited for keys that now exist. A malformed request is
  // answered with an error, too.
  std::vector<Answer> handle(ClientId client, const Frame& frame);

  // Returns whether a request of the client waits. It has at most one.
  bool waits(ClientId client) const { return waiting_.contains(client); }
  // Forgets the client's waiting request.
  void leave(ClientId client);

 private:
  std::string read_key(Reader& reader) const;
  std::vector<std::string> read_keys(Reader& reader) const;
  // Changes the table as the request demands, collects the changed keys, and returns the answer.
  // Throws Refusal at a limit.
  Writer apply(Kind kind, Reader& reader, std::vector<std::string>& changed);

  struct Waiting {
    Kind kind = Kind::wait;
    std::vector<std::string> keys;
    std::string missing;  // one of them
  };

  // Answers the request, or lets it wait for its first missing key.
  std::optional<Answer> try_to_answer(ClientId client, Waiting request);
  void wake(const std::string& key, std::vector<Answer>& answers);

  const Limits limits_;
  Table table_;
  std::unordered_map<ClientId, Waiting> waiting_;
  std::unordered_map<std::string, std::vector<ClientId>> by_key_;  // who waits for a missing key
};

}  // namespace perigee::store
