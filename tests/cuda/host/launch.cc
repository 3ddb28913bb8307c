#include "tests/cuda/host/launch.h"

#include <sanitizer/common_interface_defs.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <stdexcept>

// OpenSSL frees the state of a thread at the thread's end, which may come after the check for leaks.
extern "C" const char* __lsan_default_suppressions() { return "leak:CRYPTO_zalloc\n"; }

namespace perigee::cuda {

Coordinates threadIdx, blockIdx, blockDim, gridDim;
ThreadOrder thread_order = ThreadOrder::ascending;

namespace {

constexpr size_t kStack = size_t{1} << 16;  // bytes

enum class State { at_warp_barrier, at_barrier, ended };

using Place = void* [5];  // of __builtin_setjmp

// Runs threads of blocks, one after the other.
struct Fiber {
  Place place;
  std::unique_ptr<char[]> stack;
  State state = State::ended;
  unsigned turn = 0;       // of shuffles
  void* frames = nullptr;  // of the address sanitizer
};

// The fiber that runs, and the way back to run_block.
Fiber* current = nullptr;
Place scheduler;
void* scheduler_frames = nullptr;
const void* scheduler_stack = nullptr;
size_t scheduler_size = 0;
const std::function<void()>* kernel_body = nullptr;

[[gnu::noinline, noreturn, gnu::no_sanitize_address]] void jump(Place& to) {
  __builtin_longjmp(to, 1);
}

// Continues at `to`, and returns when something continues at `from`. swapcontext would call the
// system twice.
[[gnu::noinline, gnu::no_sanitize_address]] void swap_places(Place& from, Place& to) {
  if (__builtin_setjmp(from) == 0) jump(to);
}

// Leaves the fiber until it is resumed.
void leave(State state) {
  auto* fiber = current;
  fiber->state = state;
  __sanitizer_start_switch_fiber(&fiber->frames, scheduler_stack, scheduler_size);
  swap_places(fiber->place, scheduler);
  __sanitizer_finish_switch_fiber(fiber->frames, &scheduler_stack, &scheduler_size);
}

// Runs one thread after the other, forever.
void run_threads() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_size);
  while (true) {
    (*kernel_body)();
    leave(State::ended);
  }
}

// Enters a fiber for the first time.
[[gnu::no_sanitize_address]] void begin(Fiber& fiber) {
  ucontext_t context{};
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStack;
  makecontext(&context, run_threads, 0);
  if (__builtin_setjmp(scheduler) == 0) setcontext(&context);
}

void resume(Fiber& fiber) {
  current = &fiber;
  if (!fiber.stack) {
    fiber.stack = std::make_unique<char[]>(kStack);
    __sanitizer_start_switch_fiber(&scheduler_frames, fiber.stack.get(), kStack);
    begin(fiber);
  } else {
    __sanitizer_start_switch_fiber(&scheduler_frames, fiber.stack.get(), kStack);
    swap_places(scheduler, fiber.place);
  }
  __sanitizer_finish_switch_fiber(scheduler_frames, nullptr, nullptr);
}

constexpr const char* kLeft = "threads left the kernel while others waited at a barrier";

// Runs the threads of a warp up to their next barrier, and returns where they are.
State run_warp(std::deque<Fiber>& fibers, unsigned first, unsigned end) {
  const bool ascending = thread_order == ThreadOrder::ascending;
  bool all_same = true;
  auto state = State::ended;
  for (unsigned k = first; k < end; ++k) {
    const unsigned i = ascending ? k : end - 1 - (k - first);
    threadIdx = {i, 0, 0};
    auto& fiber = fibers[i];
    resume(fiber);
    all_same &= k == first || fiber.state == state;
    state = fiber.state;
  }
  if (!all_same) {
    fibers.clear();  // those at the barrier are not resumed
    throw std::logic_error(kLeft);
  }
  return state;
}

void run_block(std::deque<Fiber>& fibers, unsigned threads) {
  constexpr unsigned kWarp = 32;
  const unsigned warps = (threads + kWarp - 1) / kWarp;
  for (unsigned ended = 0; ended < warps;) {
    for (unsigned k = 0; k < warps; ++k) {
      const unsigned warp = thread_order == ThreadOrder::ascending ? k : warps - 1 - k;
      const unsigned first = warp * kWarp, end = std::min(threads, first + kWarp);
      auto state = State::at_warp_barrier;
      while (state == State::at_warp_barrier) state = run_warp(fibers, first, end);
      if (state == State::ended) ++ended;
    }
    if (ended != 0 && ended != warps) {
      fibers.clear();
      throw std::logic_error(kLeft);
    }
  }
}

}  // namespace

void __syncthreads() { leave(State::at_barrier); }
void __syncwarp() { leave(State::at_warp_barrier); }
unsigned next_turn() { return current->turn ^= 1; }

void run_blocks(dim3 blocks, unsigned threads, const std::function<void()>& body) {
  static std::deque<Fiber> fibers;  // a fiber keeps its address
  fibers.resize(std::max<size_t>(fibers.size(), threads));
  kernel_body = &body;
  blockDim = {threads, 1, 1};
  gridDim = {blocks.x, blocks.y, blocks.z};
  for (unsigned z = 0; z < blocks.z; ++z) {
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = 0; x < blocks.x; ++x) {
        blockIdx = {x, y, z};
        run_block(fibers, threads);
      }
    }
  }
}

}  // namespace perigee::cuda
