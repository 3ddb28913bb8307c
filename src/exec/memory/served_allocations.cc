#include "exec/memory/served_allocations.h"

#include <algorithm>

namespace perigee::exec {

ServedAllocations::ServedAllocations(std::span<const compile::Allocation> allocations,
                                     std::span<std::byte* const> bases) {
  for (const auto& [bytes, place, until] : allocations) {
    if (bytes == 0 || place.frame < 0 || !bases[place.frame]) continue;
    planned_.push_back({.address = bases[place.frame] + place.offset, .bytes = bytes});
  }
}

void ServedAllocations::start() {
  for (auto& served : planned_) served.made = served.used = false;
  running_ = true;
}

void* ServedAllocations::serve(int64_t bytes) {
  if (!running_) return nullptr;
  for (auto& next : planned_) {
    if (next.made || next.bytes != bytes) continue;
    if (std::any_of(planned_.begin(), planned_.end(),
                    [&](const Served& other) { return other.used && other.overlaps(next); })) {
      return nullptr;
    }
    next.made = next.used = true;
    return next.address;
  }
  return nullptr;
}

bool ServedAllocations::free(const void* address) {
  for (auto& served : planned_) {
    if (!served.used || served.address != address) continue;
    served.used = false;
    return true;
  }
  return false;
}

bool ServedAllocations::holds(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  return std::any_of(planned_.begin(), planned_.end(), [&](const Served& served) {
    return served.used && byte >= served.address && byte < served.address + served.bytes;
  });
}

int64_t ServedAllocations::in_use() const {
  int64_t bytes = 0;
  for (const auto& served : planned_) bytes += served.used ? served.bytes : 0;
  return bytes;
}

}  // namespace perigee::exec
