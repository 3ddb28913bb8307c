#include "exec/memory/workers.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>

#include <algorithm>

#include "base/fail.h"

namespace perigee::exec {
namespace {

struct Team {
  enum class Mode { off, recorded, served } mode = Mode::off;
  std::byte* begin = nullptr;
  int64_t bytes_each = 0;
  std::vector<WorkerMemory> workers;
};

// The thread that runs ops writes its team outside of LibTorch's loops; each worker reads it, and
// writes its own part, inside of them. OpenMP orders the two.
thread_local Team own_team;

// The team and position of this thread, if it is a worker. OpenMP's threads serve one thread and
// end with it, so that the team outlives them.
struct Membership {
  Team* team = nullptr;
  size_t worker = 0;
};
thread_local Membership membership;

WorkerMemory* memory_of_worker(Team::Mode mode) {
  const auto& [team, worker] = membership;
  return team && team->mode == mode ? &team->workers[worker] : nullptr;
}

// Makes every thread that an op on this thread would use a member of the team. LibTorch's own loop
// reaches them; OpenMP starts new threads whenever the number of threads changes between two ops.
void enlist(Team& team) {
  const int threads = at::get_num_threads();
  team.workers.assign(static_cast<size_t>(threads - 1), {});
  if (threads == 1) return;
  thread_local std::vector<int8_t> elements;
  elements.resize(static_cast<size_t>(threads));
  const auto each = at::from_blob(elements.data(), {threads}, at::kChar);
  auto loop = at::TensorIteratorConfig()
                  .add_output(each)
                  .resize_outputs(false)
                  .check_all_same_dtype(false)
                  .build();
  loop.for_each(
      [&](char**, const int64_t*, int64_t, int64_t) {
        const int thread = at::get_thread_num();
        if (thread > 0) membership = {&team, static_cast<size_t>(thread - 1)};
      },
      /*grain_size=*/1);
}

}  // namespace

int64_t WorkerMemory::hold(int64_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  int64_t offset = 0;
  auto at = blocks_.begin();
  for (; at != blocks_.end() && at->offset - offset < bytes; ++at) offset = at->offset + at->bytes;
  last_ = static_cast<size_t>(at - blocks_.begin());
  blocks_.insert(at, {offset, bytes});
  peak_ = std::max(peak_, offset + bytes);
  return offset;
}

bool WorkerMemory::release(const void* address) {
  return std::erase_if(blocks_, [&](const Block& b) { return b.address == address; }) > 0;
}

Workers::Workers() {
  enlist(own_team);
  own_team.mode = Team::Mode::recorded;
}

Workers::Workers(std::byte* begin, int64_t bytes_each) {
  enlist(own_team);
  own_team.begin = begin;
  own_team.bytes_each = bytes_each;
  own_team.mode = Team::Mode::served;
}

Workers::~Workers() { own_team.mode = Team::Mode::off; }

int64_t Workers::count() const { return std::ssize(own_team.workers); }

int64_t Workers::peak() const {
  int64_t peak = 0;
  for (const auto& worker : own_team.workers) peak = std::max(peak, worker.peak());
  return peak;
}

bool Workers::empty() const { return std::ranges::all_of(own_team.workers, &WorkerMemory::empty); }

bool is_served_worker() { return memory_of_worker(Team::Mode::served) != nullptr; }

void* serve_worker(int64_t bytes) {
  auto& memory = *memory_of_worker(Team::Mode::served);
  const auto& team = *membership.team;
  const int64_t offset = memory.hold(bytes);
  auto* address = team.begin + static_cast<int64_t>(membership.worker) * team.bytes_each + offset;
  memory.set_address(address);
  if (memory.peak() > team.bytes_each) {
    fail_run("exec",
             "each worker of the op must hold {} bytes at most, as when its trace was recorded, "
             "but one holds {}",
             team.bytes_each, memory.peak());
  }
  return address;
}

void record_worker(const void* address, int64_t bytes) {
  if (auto* memory = memory_of_worker(Team::Mode::recorded)) {
    memory->hold(bytes);
    memory->set_address(address);
  }
}

void release_worker(const void* address) {
  auto* team = membership.team;
  if (team && team->mode != Team::Mode::off) team->workers[membership.worker].release(address);
}

}  // namespace perigee::exec
