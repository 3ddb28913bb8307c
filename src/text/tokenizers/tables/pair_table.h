// A hash table from pairs of numbers, as one of 64 bits, to two numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace perigee::text {

class PairTable {
 public:
  struct Entry {
    uint64_t key = kNone;
    int32_t first = -1, second = -1;
  };

  explicit PairTable(size_t expected = 16) { resize(expected); }

  static uint64_t key(uint32_t left, uint32_t right) { return uint64_t(left) << 32 | right; }

  // Returns the entry, or nullptr.
  const Entry* find(uint64_t key) const {
    for (size_t at = place(key);; at = (at + 1) & mask_) {
      if (entries_[at].key == key) return &entries_[at];
      if (entries_[at].key == kNone) return nullptr;
    }
  }

  // Returns the entry of a key (not 2^64 - 1), which is new with -1 where there was none.
  Entry& operator[](uint64_t key) {
    if (2 * (count_ + 1) > entries_.size()) resize(2 * count_ + 2);
    size_t at = place(key);
    for (; entries_[at].key != kNone; at = (at + 1) & mask_) {
      if (entries_[at].key == key) return entries_[at];
    }
    ++count_;
    entries_[at].key = key;
    return entries_[at];
  }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};

  size_t place(uint64_t key) const {
    key *= 0x9e3779b97f4a7c15U;
    return (key ^ key >> 32) & mask_;
  }

  void resize(size_t count) {
    size_t size = 16;
    while (size < 2 * count) size *= 2;
    const auto before = std::move(entries_);
    entries_.assign(size, {});
    mask_ = size - 1;
    for (const auto& entry : before) {
      if (entry.key == kNone) continue;
      size_t at = place(entry.key);
      while (entries_[at].key != kNone) at = (at + 1) & mask_;
      entries_[at] = entry;
    }
  }

  std::vector<Entry> entries_;
  size_t mask_ = 0, count_ = 0;
};

}  // namespace perigee::text
