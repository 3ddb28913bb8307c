// XXH3-128 checksums, as 32 hexadecimal digits.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace perigee::checkpoint {

// The checksum of bytes that come one after the other.
class Checksum {
 public:
  Checksum();
  void add(std::span<const std::byte> bytes);
  std::string text() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

std::string checksum_of(std::span<const std::byte> bytes);
std::string checksum_of(std::string_view text);

}  // namespace perigee::checkpoint
