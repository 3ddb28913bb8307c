// A hash table from texts to numbers, with the texts in one piece of memory.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace perigee::text {

class StringTable {
 public:
  explicit StringTable(size_t expected = 16) { reserve(expected); }

  // Returns the number of a text, or -1.
  int64_t find(std::string_view text) const {
    const auto hash = XXH3_64bits(text.data(), text.size());
    for (size_t at = hash & mask_;; at = (at + 1) & mask_) {
      const auto& slot = slots_[at];
      if (slot.number < 0) return -1;
      if (slot.check == static_cast<uint32_t>(hash >> 32) && text_of(slot) == text) {
        return slot.number;
      }
    }
  }

  // Sets the number (at least 0) of a text.
  void set(std::string_view text, int64_t number) {
    if (2 * (count_ + 1) > slots_.size()) reserve(2 * count_ + 2);
    const auto hash = XXH3_64bits(text.data(), text.size());
    size_t at = hash & mask_;
    for (; slots_[at].number >= 0; at = (at + 1) & mask_) {
      if (text_of(slots_[at]) != text) continue;
      slots_[at].number = number;
      return;
    }
    slots_[at] = {texts_.size(), number, static_cast<uint32_t>(hash >> 32),
                  static_cast<uint32_t>(text.size())};
    texts_ += text;
    ++count_;
  }

  void clear() {
    slots_.assign(slots_.size(), {});
    texts_.clear();
    count_ = 0;
  }

  size_t size() const { return count_; }
  size_t bytes() const { return texts_.size() + slots_.size() * sizeof(Slot); }

  // Calls `each(text, number)` for all entries, in no order.
  template <class Each>
  void for_each(const Each& each) const {
    for (const auto& slot : slots_) {
      if (slot.number >= 0) each(text_of(slot), slot.number);
    }
  }

 private:
  struct Slot {
    uint64_t begin = 0;
    int64_t number = -1;
    uint32_t check = 0, length = 0;
  };

  std::string_view text_of(const Slot& slot) const {
    return {texts_.data() + slot.begin, slot.length};
  }

  void reserve(size_t count) {
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    if (slots <= slots_.size()) return;
    const auto before = std::move(slots_);
    slots_.assign(slots, {});
    mask_ = slots - 1;
    for (const auto& slot : before) {
      if (slot.number < 0) continue;
      const auto text = text_of(slot);
      size_t at = XXH3_64bits(text.data(), text.size()) & mask_;
      while (slots_[at].number >= 0) at = (at + 1) & mask_;
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0, count_ = 0;
  std::string texts_;
};

}  // namespace perigee::text
