#include "exec/comm/shared/slots.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>

namespace perigee::exec {
namespace {

constexpr int64_t kHead = 64, kCollectives = 64, kMessages = 16;  // bytes, slots, slots

}  // namespace

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, int64_t milliseconds) {
  const timespec limit{.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A sleeper counts itself before it looks at the phase, and the phase is set before the sleepers
// are counted: either the sleeper sees the new phase, or it is woken.
void Slot::enter(Phase next_phase) {
  phase.store(next_phase);
  if (sleepers.load() != 0) futex_wake(phase);
}

void Slot::sleep(uint32_t seen, int64_t milliseconds) {
  sleepers.fetch_add(1);
  if (phase.load() == seen) futex_wait(phase, seen, milliseconds);
  sleepers.fetch_sub(1);
}

void Slot::fail(const std::string& text) {
  if (errors.fetch_add(1) != 0) return;
  const auto length = std::min(text.size(), error.size() - 1);
  std::memcpy(error.data(), text.data(), length);
  error[length] = '\0';
}

int64_t GroupLayout::bytes(int64_t ranks) {
  return kHead + Ring::bytes(ranks, kCollectives) + ranks * ranks * Ring::bytes(2, kMessages);
}

Ring GroupLayout::collectives() const { return {begin_ + kHead, ranks_, kCollectives}; }

Ring GroupLayout::messages(int64_t from, int64_t to) const {
  auto* first = begin_ + kHead + Ring::bytes(ranks_, kCollectives);
  return {first + (from * ranks_ + to) * Ring::bytes(2, kMessages), 2, kMessages};
}

}  // namespace perigee::exec
