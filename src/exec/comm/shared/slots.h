// The layout of a group's segment: rings of slots, in which ranks meet for their collectives and
// messages. All fields start as zeros. Its ranks are processes of one host that trust each other.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "exec/memory/shared_memory.h"

namespace perigee::exec {

// One rank's part of a slot. Its counts follow the slot's calls.
struct SlotCall {
  std::atomic<uint64_t> joined{0};  // the round that it has joined; counts from 1
  int32_t kind = 0, type = 0, reduce = 0;
  int32_t input_parts = 0, output_parts = 0;  // numbers of counts
  int64_t peer = 0, input_elements = 0, output_elements = 0;
  SharedPlace input, output;
};

// One collective or message. The n-th of a ring of k slots takes slot n % k in round n / k + 1.
struct alignas(64) Slot {
  enum Phase : uint32_t {
    open,     // not all ranks have joined
    running,  // any rank takes pieces
    done,
    failed,  // `error` says why
  };
  std::atomic<uint32_t> phase{open};  // a futex
  std::atomic<uint32_t> sleepers{0};
  std::atomic<uint32_t> joined{0};    // ranks
  std::atomic<uint32_t> released{0};  // ranks that have seen the end
  std::atomic<uint64_t> round{0};     // rounds that all ranks have released
  int64_t pieces = 0, began = 0, ended = 0;
  alignas(64) std::atomic<int64_t> next{0};      // piece to take
  alignas(64) std::atomic<int64_t> finished{0};  // pieces
  std::atomic<uint32_t> errors{0};
  std::array<char, 500> error{};

  // Sets the phase and wakes the ranks that sleep in it.
  void enter(Phase next_phase);
  // Sleeps while the phase is `seen`, at most so many milliseconds. May return early.
  void sleep(uint32_t seen, int64_t milliseconds);
  // Keeps the first error.
  void fail(const std::string& text);
};

// Waits while the word has the value, at most so many milliseconds. May return early.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t milliseconds);
void futex_wake(std::atomic<uint32_t>& word);

// Slots of `ranks` participants.
class Ring {
 public:
  Ring() = default;
  Ring(std::byte* begin, int64_t ranks, int64_t slots)
      : begin_(begin), ranks_(ranks), slots_(slots) {}
  static int64_t bytes(int64_t ranks, int64_t slots) { return slot_bytes(ranks) * slots; }

  int64_t ranks() const { return ranks_; }
  uint64_t round(int64_t number) const { return static_cast<uint64_t>(number / slots_) + 1; }
  Slot& slot(int64_t number) const { return *reinterpret_cast<Slot*>(at(number)); }
  SlotCall& call(int64_t number, int64_t rank) const {
    return reinterpret_cast<SlotCall*>(at(number) + sizeof(Slot))[rank];
  }
  // Returns the room for a rank's counts: of its input, then of its output.
  int64_t* counts(int64_t number, int64_t rank) const {
    auto* all = at(number) + sizeof(Slot) + static_cast<size_t>(ranks_) * sizeof(SlotCall);
    return reinterpret_cast<int64_t*>(all) + rank * 2 * ranks_;
  }

 private:
  static int64_t slot_bytes(int64_t ranks) {
    const auto calls = static_cast<int64_t>(sizeof(SlotCall)) * ranks;
    return (static_cast<int64_t>(sizeof(Slot)) + calls + 16 * ranks * ranks + 63) / 64 * 64;
  }
  std::byte* at(int64_t number) const { return begin_ + number % slots_ * slot_bytes(ranks_); }

  std::byte* begin_ = nullptr;
  int64_t ranks_ = 0, slots_ = 1;
};

// The segment of a group: a ring for its collectives, and one for the messages of each pair.
class GroupLayout {
 public:
  GroupLayout(std::byte* begin, int64_t ranks) : begin_(begin), ranks_(ranks) {}
  static int64_t bytes(int64_t ranks);

  std::atomic<uint32_t>& attached() const {
    return *reinterpret_cast<std::atomic<uint32_t>*>(begin_);
  }
  Ring collectives() const;
  Ring messages(int64_t from, int64_t to) const;

 private:
  std::byte* begin_;
  int64_t ranks_;
};

}  // namespace perigee::exec
