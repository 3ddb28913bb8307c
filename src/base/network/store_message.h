// Messages between the job's store and its clients.
//
// A frame is a length (4 bytes: of the rest), the format's version (1 byte), a kind (1 byte)
// and fields: numbers of 8 bytes, and texts of 8 bytes of length and their bytes. Numbers are
// little endian.
//
// Handshake: the store sends `hello` with a nonce N; the client answers `proof` with its nonce M
// and keyed_hash("client" N M); the store answers `welcome` with keyed_hash("server" N M), or
// `refused`. Each side thus proves that it knows the job's secret, and neither sends it. Then the
// client sends requests, and the store answers each with `done`, or with `error` and the end of
// the connection.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace perigee::store {

constexpr uint8_t kFormatVersion = 1;
constexpr size_t kNonceSize = 32;
constexpr size_t kFirstFrame = 256;              // longest frame of a handshake
constexpr size_t kReceived = size_t{256} << 10;  // most bytes of one receive

// Returns the keyed hash of a text under the job's secret (exec/comm/job_secret.h): core has no
// cryptographic library.
using KeyedHash = std::function<std::string(std::string_view text)>;

// The most that a store holds, in bytes; `keys` is a count.
struct Limits {
  size_t key = size_t{4} << 10;
  size_t value = size_t{64} << 20;
  size_t total = size_t{1} << 30;
  size_t keys = 1'000'000;

  // Of one request or answer: two values of compare_set, or many small ones.
  size_t frame() const { return 2 * value + (size_t{1} << 20); }
};

enum class Kind : uint8_t {
  hello = 1,
  proof,
  welcome,
  refused,
  set = 16,     // pairs of key and value
  get,          // keys; answers with their values when all exist
  wait,         // keys; answers when all exist
  check,        // keys; answers 1 if all exist, else 0
  compare_set,  // key, expected value, new value; answers with a value
  append,       // key, text
  add,          // key, number; answers with the sum
  erase,        // key; answers 1 if it existed, else 0
  count,        // answers with the number of keys
  done = 64,
  error,  // a text
};

// A message that breaks the format. The reader ends the connection.
class Malformed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A request that the store does not carry out. Its text goes to the client.
class Refusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Builds a frame.
class Writer {
 public:
  explicit Writer(Kind kind);
  Writer& number(uint64_t value);
  Writer& text(std::string_view value);
  size_t size() const { return frame_.size(); }
  // Returns the frame with its length. Throws Malformed beyond 4 GiB.
  std::string finish() &&;

 private:
  std::string frame_;
};

// A received frame without its length.
struct Frame {
  Kind kind = Kind::error;
  std::string fields;
};

// Removes the first frame from the received bytes. Returns nothing where it is not complete. Throws
// Malformed where it is longer than `limit` or of another version.
std::optional<Frame> take_frame(std::string& received, size_t limit);

// Reads the fields of a frame, which must outlive it. Throws Malformed past its end.
class Reader {
 public:
  explicit Reader(const Frame& frame) : left_(frame.fields) {}
  uint64_t number();
  std::string_view text();
  bool done() const { return left_.empty(); }  // all fields are read

 private:
  std::string_view left_;
};

// Returns random bytes of the system, suited for nonces and secrets. Throws Error
// (Status::failed) where it has none.
std::string random_bytes(size_t size);

// Returns the text whose keyed hash proves to the other side who knows the secret.
std::string client_claim(std::string_view server_nonce, std::string_view client_nonce);
std::string server_claim(std::string_view server_nonce, std::string_view client_nonce);

// Compares in a time that depends only on the sizes.
bool same_proof(std::string_view a, std::string_view b);

}  // namespace perigee::store
