// Numbers for equal things, by exact keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace perigee::shard {

// Byte strings as keys: equal exactly for equal things.
class Key {
 public:
  void clear() { bytes_.clear(); }
  void put(int64_t n) { bytes_.append(reinterpret_cast<const char*>(&n), sizeof n); }
  void put(int n) { put(static_cast<int64_t>(n)); }
  void put(std::string_view text) {
    put(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Gives equal things equal small numbers.
class Numbering {
 public:
  // Returns the number and whether it is new.
  std::pair<int, bool> of(const std::string& bytes) {
    const auto [at, added] = numbers_.try_emplace(bytes, static_cast<int>(numbers_.size()));
    return {at->second, added};
  }

 private:
  std::unordered_map<std::string, int> numbers_;
};

}  // namespace perigee::shard
