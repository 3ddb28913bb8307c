// Memory of collectives as NCCL's symmetric windows: who gets one, when it ends, and failures.
#include <atomic>
#include <optional>
#include <thread>

#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/ranks.h"

namespace perigee::cuda {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using Kind = exec::Collective::Kind;
using exec::CollectiveMemory;

constexpr int64_t kBytes = 4096;

std::shared_ptr<exec::Group> group_of(exec::Communicator& communicator) {
  return communicator.group("data", first_ranks(communicator.world()));
}

// Returns memory of the device, and the layout of its collectives.
CollectiveMemory memory_of(CudaDevice& device, const std::string& layout = "all_reduce 0 0",
                           int64_t bytes = kBytes) {
  return {device.allocate(bytes, /*communicates=*/true), bytes, layout};
}

// Adds the numbers of all ranks at that offset of the memory, in place.
void sum_at(exec::Group& group, const CollectiveMemory& memory, int64_t offset) {
  auto x = at::from_blob(memory.memory.get() + offset, {8}, at::kFloat);
  group.start({.kind = Kind::all_reduce, .input = x, .output = x})->wait();
}

// Runs `body` with the group of all of `world` ranks; returns the errors.
using GroupBody = std::function<void(exec::Communicator&, CudaDevice&, exec::Group&)>;
std::vector<std::string> run_groups(int world, const GroupBody& body,
                                    std::chrono::milliseconds timeout = 20s) {
  return run_gpus(world, timeout, [&](exec::Communicator& communicator, CudaDevice& device) {
    const auto group = group_of(communicator);
    const auto entered = device.enter();
    body(communicator, device, *group);
    device.synchronize([&] { communicator.check(); });
  });
}

const std::vector<std::string> kNone;

TEST_CASE("ranks with one layout get windows, in which their collectives run") {
  const int world = GENERATE(2, 3, 4);
  simulated::restart(GENERATE(1, 2, 3));
  const auto errors = run_groups(
      world, [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        const auto memory = memory_of(device);
        const auto registration = group.register_memory(memory);
        if (!registration) throw std::runtime_error("no window");
        sum_at(group, memory, 0);
        sum_at(group, memory, 128);
        device.synchronize([&] { communicator.check(); });
      });
  CHECK(errors == none(world));
  const auto counts = simulated::window_counts();
  CHECK(counts.made == world);
  CHECK(counts.open == 0);
  CHECK(counts.collectives == 2);
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("ranks with different layouts or sizes get no window, and their collectives run") {
  const bool sizes = GENERATE(false, true);
  simulated::restart(1);
  const auto errors = run_groups(
      3, [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        const bool other = communicator.rank() == 1;
        const auto memory = memory_of(device, other && !sizes ? "all_reduce 64 64" : "all_reduce",
                                      other && sizes ? 2 * kBytes : kBytes);
        if (group.register_memory(memory)) throw std::runtime_error("a window");
        sum_at(group, memory, other ? 64 : 0);
        device.synchronize([&] { communicator.check(); });
      });
  CHECK(errors == none(3));
  CHECK(simulated::window_counts().made == 0);
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("collectives that use no memory of collectives need no window") {
  simulated::restart(1);
  const auto errors = run_groups(2,
                                 [&](exec::Communicator&, CudaDevice& device, exec::Group& group) {
                                   if (group.register_memory(memory_of(device, "")))
                                     throw std::runtime_error("a window");
                                   if (group.register_memory({}))
                                     throw std::runtime_error("a window of no memory");
                                 });
  CHECK(errors == none(2));
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("memory stays unregistered where NCCL makes no windows, or is older than 2.27") {
  simulated::restart(1);
  const bool old = GENERATE(false, true);
  if (old) {
    simulated::table().ncclCommWindowRegister = nullptr;
    simulated::table().ncclCommWindowDeregister = nullptr;
  } else {
    simulated::makes_windows = false;
  }
  const auto errors = run_groups(
      2, [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        const auto memory = memory_of(device);
        if (group.register_memory(memory)) throw std::runtime_error("a window");
        sum_at(group, memory, 0);
        device.synchronize([&] { communicator.check(); });
      });
  CHECK(errors == none(2));
  CHECK(simulated::window_counts().collectives == 0);
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("memory of cudaMalloc on one rank leaves that of all ranks unregistered") {
  simulated::restart(1);
  static ncclResult_t (*given)(void**, size_t);
  given = simulated::table().ncclMemAlloc;
  simulated::table().ncclMemAlloc = [](void** memory, size_t bytes) {
    return simulated::current_device() == 1 ? ncclSystemError : given(memory, bytes);
  };
  const auto errors = run_groups(3,
                                 [&](exec::Communicator&, CudaDevice& device, exec::Group& group) {
                                   if (group.register_memory(memory_of(device)))
                                     throw std::runtime_error("a window");
                                 });
  CHECK(errors == none(3));
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("a window ends before its memory, though nothing else holds the memory") {
  simulated::restart(1);
  const auto errors = run_groups(
      2, [&](exec::Communicator&, CudaDevice& device, exec::Group& group) {
        const auto registration = group.register_memory(memory_of(device));
        if (!registration) throw std::runtime_error("no window");
      });
  CHECK(errors == none(2));
  CHECK(simulated::window_counts().made == 2);
  CHECK(simulated::window_counts().open == 0);
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("a registration may outlive a communicator that is destroyed or aborted") {
  const bool aborted = GENERATE(false, true);
  simulated::restart(1);
  std::vector<std::shared_ptr<void>> registrations(2);
  const auto errors = run_groups(
      2, [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        auto& registration = registrations[communicator.rank()];
        registration = group.register_memory(memory_of(device));
        if (!registration) throw std::runtime_error("no window");
        device.synchronize({});
        if (aborted) communicator.abort("an order of the test");
        if (aborted && communicator.rank() == 0) registration.reset();
      });
  if (!aborted) CHECK(errors == none(2));
  CHECK(simulated::window_counts().open == 0);
  registrations.clear();
  CHECK(simulated::window_counts().made == 2);
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("two programs of a communicator have windows of their own, which end in any order") {
  const bool first_ends_first = GENERATE(false, true);
  simulated::restart(1);
  const auto errors = run_groups(
      2, [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        const auto training = memory_of(device), evaluation = memory_of(device, "all_reduce 256");
        auto first = group.register_memory(training), second = group.register_memory(evaluation);
        const auto run = [&](const CollectiveMemory& memory, int64_t offset) {
          sum_at(group, memory, offset);
          device.synchronize([&] { communicator.check(); });
        };
        run(training, 0);
        run(evaluation, 256);
        (first_ends_first ? first : second).reset();
        run(training, 0);
        run(evaluation, 256);
        second.reset();
        second = group.register_memory(evaluation);
        run(evaluation, 256);
      });
  CHECK(errors == none(2));
  const auto counts = simulated::window_counts();
  CHECK(counts.made == 6);
  CHECK(counts.open == 0);
  CHECK(counts.collectives == 4);
  CHECK(simulated::broken_rules() == kNone);
}

// The errors of ranks of which rank 1 fails or is late while the others register memory.
std::vector<std::string> errors_without_rank_1(bool fails) {
  return run_groups(
      3,
      [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        const auto memory = memory_of(device);
        if (communicator.rank() == 1 && fails) throw std::runtime_error("its disk is full");
        if (communicator.rank() != 1) group.register_memory(memory);
      },
      fails ? 20s : 600ms);
}

TEST_CASE("the reason of a rank that fails reaches the ranks that register memory") {
  simulated::restart(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto errors = errors_without_rank_1(true);
  CHECK(std::chrono::steady_clock::now() - begin < 15s);  // before the time-out
  for (const int rank : {0, 2}) CHECK_THAT(errors[rank], Contains("its disk is full"));
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("a rank that registers no memory ends the others at the time-out") {
  simulated::restart(1);
  const auto errors = errors_without_rank_1(false);
  for (const int rank : {0, 2}) {
    CHECK_THAT(errors[rank], Contains("the registration of memory over data (ranks 0,1,2) must "
                                      "finish within 0.6 s, but got: ") &&
                                 !Contains("NCCL_WIN_ENABLE"));
  }
  CHECK(simulated::broken_rules() == kNone);
}

TEST_CASE("a rank that fails while NCCL registers memory ends the others with its reason") {
  simulated::restart(1);
  static ncclResult_t (*given)(ncclComm_t, void*, size_t, ncclWindow_t*, int);
  given = simulated::table().ncclCommWindowRegister;
  simulated::table().ncclCommWindowRegister = [](ncclComm_t c, void* memory, size_t bytes,
                                                 ncclWindow_t* window, int flags) {
    if (simulated::current_device() == 1) return ncclUnhandledCudaError;
    return given(c, memory, bytes, window, flags);
  };
  const auto errors = run_groups(3,
                                 [&](exec::Communicator&, CudaDevice& device, exec::Group& group) {
                                   group.register_memory(memory_of(device));
                                 });
  CHECK_THAT(errors[1], Contains("rank 1: the registration of memory over data (ranks 0,1,2) must "
                                 "finish within 20 s, but got: ncclCommWindowRegister: ") &&
                            Contains("; NCCL_WIN_ENABLE=0 turns NCCL's windows off"));
  for (const int rank : {0, 2}) CHECK_THAT(errors[rank], Contains("rank 1 failed: "));
  CHECK(simulated::window_counts().open == 0);
  CHECK(simulated::broken_rules() == kNone);
}

// The rules that collectives at `offset` of rank 1, and at 0 of rank 0, break within windows.
std::vector<std::string> rules_broken_at(int64_t offset) {
  simulated::restart(1);
  const auto errors = run_groups(
      2, [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        const auto memory = memory_of(device);
        const auto registration = group.register_memory(memory);
        sum_at(group, memory, communicator.rank() == 1 ? offset : 0);
        device.synchronize([&] { communicator.check(); });
      });
  CHECK(errors == none(2));
  return simulated::broken_rules();
}

TEST_CASE("the simulated NCCL refuses collectives at different offsets of a window") {
  CHECK(rules_broken_at(0) == kNone);
  CHECK(rules_broken_at(64) ==
        std::vector<std::string>{
            "a collective's buffers lie at one offset of a window on all ranks"});
}

TEST_CASE("the simulated NCCL refuses a window where a rank has ended another one earlier") {
  simulated::restart(1);
  const auto errors = run_groups(
      2, [&](exec::Communicator& communicator, CudaDevice& device, exec::Group& group) {
        auto first = group.register_memory(memory_of(device));
        if (communicator.rank() == 1) first.reset();
        group.register_memory(memory_of(device));
      });
  for (const auto& error : errors) CHECK_THAT(error, Contains("the registration of memory"));
  CHECK(simulated::broken_rules() ==
        std::vector<std::string>{"all ranks have ended the same windows when they register one"});
}

}  // namespace
}  // namespace perigee::cuda
