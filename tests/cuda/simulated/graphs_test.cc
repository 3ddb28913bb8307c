// Recorded steps on the simulated machine: a graph repeats the work of its streams in any order, with
// the batches and the step of each launch; calls that a graph cannot have are errors.
#include "cuda/device.h"
#include "exec/recorder.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/races.h"
#include "tests/cuda/simulated/ranks.h"

namespace perigee::cuda {
namespace {

using namespace std::chrono_literals;
using Catch::Contains;
using Reduction = exec::Collective::Kind;

// A tensor of GPU memory.
struct OnGpu {
  OnGpu(CudaDevice& device, int64_t n)
      : memory(device.allocate(n * 8, false)),
        tensor(at::from_blob(memory.get(), {n}, at::kDouble)) {}
  std::shared_ptr<std::byte> memory;
  at::Tensor tensor;
};

// Submits `to = from * factor` as an op.
void submit_scaled(CudaDevice& device, const at::Tensor& to, const at::Tensor& from,
                   double factor) {
  simulated::submit(device.stream(), [=] { at::Tensor(to).copy_(from * factor); },
                    {.reads = {simulated::bytes_of(from)}, .writes = {simulated::bytes_of(to)}});
}

TEST_CASE("a graph runs its streams' work with the batch and the step of each launch") {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    simulated::restart(seed);
    std::vector<std::vector<double>> sums(2);
    const auto errors = run_gpus(2, 20s, [&](exec::Communicator& c, CudaDevice& device) {
      const auto group = c.group("data", {0, 1});
      OnGpu batch(device, 4), doubled(device, 4), sum(device, 4), numbered(device, 4);
      const auto pinned = device.allocate_host(4 * 8);
      const auto host = at::from_blob(pinned.get(), {4}, at::kDouble);
      const auto rank = static_cast<double>(c.rank());
      const auto entered = device.enter();
      const std::vector<int64_t> bytes{32};
      const auto step = device.recorder()->prepare(bytes);
      const auto* number = step->step_in_memory();
      step->record([&] {
        step->upload(batch.tensor);
        submit_scaled(device, doubled.tensor, batch.tensor, 2);
        const auto work = group->start_flat(
            {.kind = Reduction::all_reduce, .input = doubled.tensor, .output = sum.tensor});
        // Runs beside the collective.
        simulated::submit(device.stream(), [&, number] { numbered.tensor.fill_(double(*number)); });
        work->wait();
        simulated::submit(device.stream(), [&] { sum.tensor.add_(numbered.tensor); },
                          {.reads = {}, .writes = {simulated::bytes_of(sum.tensor)}});
        device.copy(host, sum.tensor, true)->wait();
      });
      if (batch.tensor[0].item<double>() != 0) throw std::runtime_error("recorded work has run");
      for (int64_t k = 1; k <= 4; ++k) {
        step->write(0, at::full({4}, double(k) + rank, at::kDouble));
        step->launch({.step = 100 * k});
        device.synchronize([&] { c.check(); });
        sums[c.rank()].push_back(host[3].item<double>());
      }
    });
    REQUIRE(errors == none(2));
    for (const auto& seen : sums) REQUIRE(seen == std::vector<double>{106, 210, 314, 418});
    REQUIRE(simulated::broken_rules() == std::vector<std::string>{});
    REQUIRE(simulated::races() == std::vector<std::string>{});
  }
}

// Returns the message of the Error with which recording the work ends, and checks that the device
// can be used after it.
std::string error_of_record(CudaDevice& device,
                            const std::function<void(exec::RecordedStep&)>& work) {
  const auto entered = device.enter();
  const std::vector<int64_t> bytes{32};
  const auto step = device.recorder()->prepare(bytes);
  std::string message = "no error";
  try {
    step->record([&] { work(*step); });
  } catch (const std::exception& error) {
    message = error.what();
  }
  auto value = at::zeros({1});
  simulated::submit(device.stream(), [&] { value.fill_(1); });
  device.synchronize({});
  CHECK(value.item<float>() == 1);
  return message;
}

TEST_CASE(
    "a call that a graph cannot have is an error that names it, and the device can be used after "
    "it") {
  simulated::restart(1);
  const auto device = make_device({.index = 1});
  OnGpu batch(*device, 4), small(*device, 2);
  const auto pinned = device->allocate_host(32);
  const auto host = at::from_blob(pinned.get(), {4}, at::kDouble);
  const auto fails = [&](const std::function<void(exec::RecordedStep&)>& work) {
    return error_of_record(*device, work);
  };
  const auto upload = [&](exec::RecordedStep& step) { step.upload(batch.tensor); };
  CHECK(fails(upload) == "no error");
  CHECK_THAT(fails([&](auto& step) {
               upload(step);
               device->synchronize({});
             }),
             Contains("cudaEventQuery on GPU 1"));
  CHECK_THAT(fails([&](auto& step) {
               upload(step);
               device->allocate_host(64);
             }),
             Contains("cudaHostAlloc on GPU 1"));
  CHECK_THAT(fails([&](auto& step) {
               upload(step);
               device->copy(host, batch.tensor, true);
             }),
             Contains("cudaStreamEndCapture on GPU 1"));
  CHECK_THAT(fails([&](auto&) {}), Contains("a batch was not uploaded"));
  CHECK_THAT(fails([&](auto& step) { step.upload(small.tensor); }),
             Contains("needs 32 contiguous bytes, but got 16"));
  CHECK_THAT(fails([&](auto&) { throw std::runtime_error("an op failed"); }),
             Contains("an op failed"));
  const std::vector<int64_t> bytes{32};
  CHECK_THROWS_WITH(device->recorder()->prepare(bytes)->write(0, small.tensor),
                    Contains("upload 0 of a recorded step has 32 bytes, but got 16"));
}

TEST_CASE("an event of a graph has no state that the host may ask for") {
  simulated::restart(1);
  const auto device = make_device({.index = 0});
  const auto entered = device->enter();
  Event event(0);
  const auto step = device->recorder()->prepare({});
  step->record([&] { event.record(device->stream()); });
  CHECK_THROWS_WITH(event.passed(), Contains("cudaEventQuery"));
  event.record(device->stream());
  event.wait();
  CHECK(event.passed());
}

// Returns a step with an all-reduce over each of the groups, one after the other.
std::unique_ptr<exec::RecordedStep> record_sums(
    CudaDevice& device, const std::vector<std::shared_ptr<exec::Group>>& groups,
    const at::Tensor& value) {
  auto step = device.recorder()->prepare({});
  step->record([&] {
    for (const auto& group : groups) {
      group->start_flat({.kind = Reduction::all_reduce, .input = value, .output = value})->wait();
    }
  });
  return step;
}

TEST_CASE("a rank that does not launch its graph ends the others after the time-out") {
  simulated::restart(3);
  const auto errors = run_gpus(2, 300ms, [&](exec::Communicator& c, CudaDevice& device) {
    const auto group = c.group("data", {0, 1});
    OnGpu value(device, 4);
    const auto entered = device.enter();
    const auto step = record_sums(device, {group}, value.tensor);
    step->launch({.step = 1});
    device.synchronize([&] { c.check(); });
    if (c.rank() == 0) step->launch({.step = 2, .usual_nanoseconds = 100'000'000});
    device.synchronize([&] { c.check(); });
  });
  CHECK_THAT(errors[0], Contains("rank 0: a recorded step must finish within 0.4 s") &&
                            Contains("the first collective that has not ended is all_reduce over "
                                     "data (ranks 0,1)"));
  CHECK(errors[1] == "");
  CHECK(simulated::broken_rules() == std::vector<std::string>{});
}

TEST_CASE("the time-out of a graph names the first collective that its last launch has not ended") {
  for (int64_t launches = 0; launches < 3; ++launches) {
    INFO(launches << " launches before");
    simulated::restart(3);
    // Rank 2 does not launch the last step: the sum before it has both its ranks.
    const auto errors = run_gpus(3, 300ms, [&](exec::Communicator& c, CudaDevice& device) {
      std::vector<std::shared_ptr<exec::Group>> groups;
      if (c.rank() < 2) groups.push_back(c.group("tensor", {0, 1}));
      groups.push_back(c.group("data", {0, 1, 2}));
      OnGpu value(device, 4);
      const auto entered = device.enter();
      const auto step = record_sums(device, groups, value.tensor);
      for (int64_t k = 0; k <= launches; ++k) {
        if (k < launches || c.rank() < 2) step->launch({.step = k + 1});
        device.synchronize([&] { c.check(); });
      }
    });
    for (const int rank : {0, 1}) {
      CHECK_THAT(errors[rank], Contains("the first collective that has not ended is all_reduce "
                                        "over data (ranks 0,1,2)"));
    }
    CHECK(errors[2] == "");
    CHECK(simulated::broken_rules() == std::vector<std::string>{});
  }
}

TEST_CASE("a rank that fails ends the graphs of all ranks before their communicators") {
  simulated::restart(3);
  const auto errors = run_gpus(2, 20s, [&](exec::Communicator& c, CudaDevice& device) {
    const auto group = c.group("data", {0, 1});
    OnGpu value(device, 4);
    const auto entered = device.enter();
    const auto step = record_sums(device, {group}, value.tensor);
    if (c.rank() == 1) return c.abort("its disk is full");
    step->launch({.step = 1});
    device.synchronize([&] { c.check(); });
  });
  CHECK_THAT(errors[0], Contains("its disk is full"));
  CHECK(errors[1] == "");
  CHECK(simulated::broken_rules() == std::vector<std::string>{});
}

thread_local bool refuses_sums = false;
decltype(ncclAllReduce)* sum_by_nccl = nullptr;

TEST_CASE("a collective that cannot be recorded leaves its communicator as it was") {
  simulated::restart(3);
  sum_by_nccl = simulated::table().ncclAllReduce;
  simulated::table().ncclAllReduce = [](const void* from, void* to, size_t n, ncclDataType_t type,
                                        ncclRedOp_t op, ncclComm_t c, cudaStream_t s) {
    return refuses_sums ? ncclInvalidUsage : sum_by_nccl(from, to, n, type, op, c, s);
  };
  std::vector<std::string> refusals(2);
  const auto errors = run_gpus(2, 20s, [&](exec::Communicator& c, CudaDevice& device) {
    const auto group = c.group("data", {0, 1});
    OnGpu value(device, 4);
    const auto entered = device.enter();
    refuses_sums = true;
    try {
      record_sums(device, {group}, value.tensor);
    } catch (const std::exception& error) {
      refusals[c.rank()] = error.what();
    }
    refuses_sums = false;
    group->run({.kind = Reduction::all_reduce, .input = value.tensor, .output = value.tensor});
    device.synchronize([&] { c.check(); });
  });
  CHECK(errors == none(2));
  for (const auto& refusal : refusals) {
    CHECK_THAT(refusal, Contains("all_reduce over data (ranks 0,1)") && Contains("ncclAllReduce"));
  }
}

}  // namespace
}  // namespace perigee::cuda
