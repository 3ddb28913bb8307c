#include "base/network/store_message.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "base/fail.h"

namespace perigee::store {
namespace {

constexpr size_t kLength = 4, kHeader = 2;  // the length; version and kind

template <class Number>
void append_number(std::string& to, Number value) {
  for (size_t i = 0; i < sizeof value; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

template <class Number>
Number read_number(std::string_view from) {
  Number value = 0;
  for (size_t i = 0; i < sizeof value; ++i) {
    value |= static_cast<Number>(static_cast<uint8_t>(from[i])) << (8 * i);
  }
  return value;
}

}  // namespace

Writer::Writer(Kind kind) : frame_(kLength, '\0') {
  frame_.push_back(static_cast<char>(kFormatVersion));
  frame_.push_back(static_cast<char>(kind));
}

Writer& Writer::number(uint64_t value) {
  append_number(frame_, value);
  return *this;
}

Writer& Writer::text(std::string_view value) {
  number(value.size());
  frame_ += value;
  return *this;
}

std::string Writer::finish() && {
  const size_t length = frame_.size() - kLength;
  if (length > std::numeric_limits<uint32_t>::max()) throw Malformed("a frame beyond 4 GiB");
  std::string prefix;
  append_number(prefix, static_cast<uint32_t>(length));
  frame_.replace(0, kLength, prefix);
  return std::move(frame_);
}

std::optional<Frame> take_frame(std::string& received, size_t limit) {
  if (received.size() < kLength) return std::nullopt;
  const size_t length = read_number<uint32_t>(received);
  if (length < kHeader || length > limit) {
    throw Malformed(
        fmt::format("a frame must have from {} to {} bytes, but has {}", kHeader, limit, length));
  }
  if (received.size() > kLength) {
    const auto version = static_cast<uint8_t>(received[kLength]);
    if (version != kFormatVersion) {
      throw Malformed(
          fmt::format("a frame must have version {}, but has {}", kFormatVersion, version));
    }
  }
  if (received.size() < kLength + length) return std::nullopt;
  Frame frame{static_cast<Kind>(received[kLength + 1])};
  if (received.size() == kLength + length) {  // the usual case moves the bytes
    frame.fields = std::exchange(received, {});
    frame.fields.erase(0, kLength + kHeader);
  } else {
    frame.fields = received.substr(kLength + kHeader, length - kHeader);
    received.erase(0, kLength + length);
  }
  return frame;
}

uint64_t Reader::number() {
  if (left_.size() < sizeof(uint64_t)) throw Malformed("a frame must hold the number it needs");
  const auto value = read_number<uint64_t>(left_);
  left_.remove_prefix(sizeof value);
  return value;
}

std::string_view Reader::text() {
  const auto size = number();
  if (size > left_.size()) throw Malformed("a frame must hold the text it announces");
  const auto text = left_.substr(0, size);
  left_.remove_prefix(size);
  return text;
}

std::string random_bytes(size_t size) {
  std::string bytes(size, '\0');
  for (size_t at = 0; at < size;) {
    const auto got = ::getrandom(bytes.data() + at, size - at, 0);
    if (got < 0 && errno != EINTR) {
      fail_run("network", "the system must give random bytes, but got: {}", std::strerror(errno));
    }
    if (got > 0) at += static_cast<size_t>(got);
  }
  return bytes;
}

std::string client_claim(std::string_view server_nonce, std::string_view client_nonce) {
  return fmt::format("perigee store client {}{}", server_nonce, client_nonce);
}

std::string server_claim(std::string_view server_nonce, std::string_view client_nonce) {
  return fmt::format("perigee store server {}{}", server_nonce, client_nonce);
}

bool same_proof(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | static_cast<unsigned>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace perigee::store
