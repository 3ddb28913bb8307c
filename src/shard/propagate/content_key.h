// Numbers for equal contents, by exact keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mesh/placement.h"

namespace perigee::shard {

// A byte string that is equal exactly for equal contents.
class ContentKey {
 public:
  void clear() { bytes_.clear(); }
  void put(int64_t n) { bytes_.append(reinterpret_cast<const char*>(&n), sizeof n); }
  void put(int n) { put(static_cast<int64_t>(n)); }
  void put(const mesh::Placements& placements) {
    for (const auto& p : placements) {
      put(static_cast<int>(p.kind) << 16 | (p.dim & 0xff) << 8 | static_cast<int>(p.reduce));
      put(p.zigzag ? -1 - p.run : p.run);
    }
  }
  void put(std::string_view text) {
    put(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Gives equal contents equal small numbers.
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

// A Numbering of placements that also returns them by number.
class PlacementNumbers {
 public:
  int of(const mesh::Placements& placements) {
    ContentKey key;
    key.put(placements);
    const auto [number, added] = numbers_.of(key.bytes());
    if (added) known_.push_back(placements);
    return number;
  }
  const mesh::Placements& at(int number) const { return known_[number]; }

 private:
  Numbering numbers_;
  std::vector<mesh::Placements> known_;
};

}  // namespace perigee::shard
