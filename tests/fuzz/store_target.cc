// Messages to a job's store (base/network/store_message.h), from clients that have proved to know
// the secret, and from strangers. The first byte of the input chooses the client; the rest are the
// bytes that it sends.
#include "base/network/store_message.h"
#include "base/network/store_requests.h"
#include "tests/fuzz/target.h"

using namespace perigee;
using namespace perigee::store;

namespace {

constexpr Limits kLimits{.key = 64, .value = 1024, .total = 4096, .keys = 16};

// The first message of a stranger: a proof.
void read_proof(std::string bytes) {
  const auto frame = take_frame(bytes, kFirstFrame);
  if (!frame) return fuzz::require(bytes.size() < kFirstFrame + 4, "a long frame is awaited");
  Reader reader(*frame);
  const auto nonce = reader.text(), proof = reader.text();
  fuzz::require(nonce.size() + proof.size() <= kFirstFrame, "a proof is longer than its frame");
}

void check_answer(const Answer& answer) {
  auto frame = answer.frame;
  const auto read = take_frame(frame, kLimits.frame());
  fuzz::require(read && frame.empty(), "an answer is no frame");
  fuzz::require(read->kind == (answer.last ? Kind::error : Kind::done), "an answer's kind");
}

// Requests of two clients in turn; client 1 waits for keys that client 2 sets.
void serve(std::string bytes) {
  Requests requests(kLimits);
  for (ClientId client = 1; const auto frame = take_frame(bytes, kLimits.frame());
       client = 3 - client) {
    if (requests.waits(client)) {
      requests.leave(client);
      continue;
    }
    for (const auto& answer : requests.handle(client, *frame)) {
      check_answer(answer);
      fuzz::require(!requests.waits(answer.client), "a client has an answer and waits");
      if (answer.last) requests.leave(answer.client);
    }
  }
  requests.leave(1);
  requests.leave(2);
}

}  // namespace

PERIGEE_FUZZ_TARGET(store) {
  if (input.empty()) return;
  try {
    if (input[0] == 's') {
      read_proof(std::string(input.substr(1)));
    } else {
      serve(std::string(input.substr(1)));
    }
  } catch (const Malformed&) {  // ends the client's connection
  }
}
