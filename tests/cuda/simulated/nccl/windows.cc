#include "tests/cuda/simulated/nccl/windows.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/state.h"

namespace perigee::cuda::simulated {
namespace {

struct Window {
  Member member;
  const std::byte* begin;
  size_t bytes;
  int64_t number;        // among the member's registrations
  ncclWindow_t* handle;  // filled when all members have registered it
  bool ready = false;
};

std::vector<std::unique_ptr<Window>> windows;
std::map<std::pair<const void*, int>, int64_t> registrations;  // by clique and rank
std::set<const void*> failed;                                  // cliques
std::map<const std::byte*, size_t> nccl_memory;                // bytes by address
WindowCounts counts;

bool same(const Member& a, const Member& b) { return a.clique == b.clique && a.rank == b.rank; }

bool is_nccl_memory(const std::byte* begin, size_t bytes) {
  const auto next = nccl_memory.upper_bound(begin);
  if (next == nccl_memory.begin()) return false;
  const auto& [address, size] = *std::prev(next);
  return begin + bytes <= address + size;
}

// Returns the numbers of a member's windows.
std::vector<int64_t> open_windows(const Member& member) {
  std::vector<int64_t> numbers;
  for (const auto& window : windows) {
    if (same(window->member, member)) numbers.push_back(window->number);
  }
  return numbers;
}

// Returns the rule that a registration which all members have joined breaks, or nullptr.
const char* broken_rule(const std::vector<Window*>& joined) {
  const auto& first = *joined.front();
  for (const auto* window : joined) {
    if (window->bytes != first.bytes) return "all ranks register a window of one size";
    // Each rank places windows by itself, one after the other, in the memory that all map.
    if (open_windows(window->member) != open_windows(first.member)) {
      return "all ranks have ended the same windows when they register one";
    }
  }
  return nullptr;
}

// Ends a registration that all members have joined.
void finish(const std::vector<Window*>& joined) {
  if (const auto* rule = broken_rule(joined)) {
    machine().broken.emplace_back(rule);
    failed.insert(joined.front()->member.clique);
    return;
  }
  for (auto* window : joined) {
    window->ready = true;
    *window->handle = makes_windows ? reinterpret_cast<ncclWindow_t>(window) : nullptr;
    counts.made += makes_windows ? 1 : 0;
  }
  if (makes_windows) return;
  const auto number = joined.front()->number;
  std::erase_if(windows, [&, clique = joined.front()->member.clique](const auto& window) {
    return window->member.clique == clique && window->number == number;
  });
}

}  // namespace

bool makes_windows = true;

WindowCounts window_counts() {
  const Lock lock(machine().mutex);
  counts.open = std::ssize(windows);
  return counts;
}

ncclResult_t register_window(const Member& member, void* memory, size_t bytes, ncclWindow_t* handle,
                             int flags) {
  auto& m = machine();
  const auto* begin = static_cast<const std::byte*>(memory);
  if (current_device() != member.device) {
    return m.refuse("a window is registered on its communicator's device", ncclInvalidUsage);
  }
  if (bytes == 0 || !is_nccl_memory(begin, bytes) || flags != NCCL_WIN_COLL_SYMMETRIC) {
    return m.refuse("a symmetric window is memory of ncclMemAlloc", ncclInvalidArgument);
  }
  const auto number = registrations[{member.clique, member.rank}]++;
  windows.push_back(std::make_unique<Window>(Window{member, begin, bytes, number, handle}));
  std::vector<Window*> joined;
  for (const auto& window : windows) {
    if (window->member.clique == member.clique && window->number == number) {
      joined.push_back(window.get());
    }
  }
  if (std::ssize(joined) == member.size) finish(joined);
  m.changed.notify_all();
  return ncclInProgress;
}

ncclResult_t deregister_window(const Member& member, ncclWindow_t handle) {
  auto& m = machine();
  const auto found = std::find_if(windows.begin(), windows.end(), [&](const auto& window) {
    return reinterpret_cast<ncclWindow_t>(window.get()) == handle && window->ready &&
           same(window->member, member);
  });
  if (found == windows.end() || current_device() != member.device) {
    return m.refuse("a window is deregistered once, by its communicator and on its device",
                    ncclInvalidArgument);
  }
  windows.erase(found);
  return ncclSuccess;
}

ncclResult_t state_of_windows(const Member& member) {
  if (failed.contains(member.clique)) return ncclInvalidUsage;
  const bool waits = std::any_of(windows.begin(), windows.end(), [&](const auto& window) {
    return same(window->member, member) && !window->ready;
  });
  return waits ? ncclInProgress : ncclSuccess;
}

void end_windows(const Member& member, bool aborted) {
  const auto ended = std::erase_if(
      windows, [&](const auto& window) { return same(window->member, member); });
  if (ended > 0 && !aborted) {
    machine().broken.emplace_back("windows are deregistered before their communicator's end");
  }
}

WindowPlace place_in_window(const Member& member, const void* buffer) {
  const std::less<const void*> less;
  for (const auto& window : windows) {
    if (!window->ready || !same(window->member, member)) continue;
    if (less(buffer, window->begin) || !less(buffer, window->begin + window->bytes)) continue;
    return {window->number, static_cast<const std::byte*>(buffer) - window->begin};
  }
  return {};
}

void count_in_windows() { ++counts.collectives; }

void restart_windows() {
  windows.clear();
  registrations.clear();
  failed.clear();
  counts = {};
  makes_windows = true;
}

void nccl_gives(const void* memory, size_t bytes) {
  nccl_memory[static_cast<const std::byte*>(memory)] = bytes;
}

void nccl_frees(const void* memory) {
  const auto found = nccl_memory.find(static_cast<const std::byte*>(memory));
  if (found == nccl_memory.end()) return;
  const auto& [begin, bytes] = *found;
  for (const auto& window : windows) {
    if (window->begin >= begin && window->begin < begin + bytes) {
      machine().broken.emplace_back("a window is deregistered before its memory is freed");
    }
  }
  nccl_memory.erase(found);
}

std::shared_ptr<std::byte> as_nccl_memory(std::shared_ptr<std::byte> memory, int64_t bytes) {
  const Lock lock(machine().mutex);
  auto* address = memory.get();
  nccl_gives(address, static_cast<size_t>(bytes));
  return {address, [memory = std::move(memory)](std::byte* freed) mutable {
            const Lock held(machine().mutex);
            nccl_frees(freed);
            memory.reset();
          }};
}

}  // namespace perigee::cuda::simulated
