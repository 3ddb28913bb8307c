// The detector of races: no wait, event or guard of a device or a group is missing, and each that is
// taken away is found, whatever the order in which the work runs.
#include "tests/cuda/simulated/races.h"

#include <algorithm>

#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/ranks.h"

namespace perigee::cuda {
namespace {

using namespace std::chrono_literals;
using simulated::bytes_of;
using simulated::submit;
using Kind = exec::Collective::Kind;
using Found = std::vector<std::string>;

// Computes with a tensor, copies it to the host, and computes again.
void offload() {
  const auto device = make_device({.index = 1});
  const auto entered = device->enter();
  const auto value = at::zeros({8}), host = at::zeros({8}), later = at::zeros({8});
  submit(device->stream(), [=] { at::Tensor(value).fill_(5); }, {.writes = {bytes_of(value)}});
  const auto copy = device->copy(host, value, true);
  copy->wait();
  submit(device->stream(), [=] { at::Tensor(later).copy_(host); },
         {.reads = {bytes_of(host)}, .writes = {bytes_of(later)}});
  submit(device->stream(), [=] { at::Tensor(value).fill_(6); }, {.writes = {bytes_of(value)}});
  device->synchronize({});
  simulated::host_accesses({.reads = {bytes_of(host), bytes_of(later), bytes_of(value)}});
}

// Uploads batches of one size, of several steps.
void upload() {
  const auto device = make_device({.index = 2});
  const auto target = at::zeros({16});
  for (int step = 0; step < 3; ++step) {
    const auto entered = device->enter();
    for (int batch = 0; batch < 3; ++batch) {
      device->upload(target, at::full({16}, static_cast<float>(10 * step + batch)));
      submit(device->stream(), [] {}, {.reads = {bytes_of(target)}});
    }
    device->synchronize({});
  }
}

// Each rank computes an operand, sums it with the others', computes with the sum, and overwrites
// the operand.
void reduce() {
  const auto errors = run_gpus(2, 20s, [](exec::Communicator& communicator, CudaDevice& device) {
    const auto group = communicator.group("data", first_ranks(2));
    const auto entered = device.enter();
    const auto in = at::ones({4}), out = at::zeros({4}), later = at::zeros({4});
    submit(device.stream(), [=] { at::Tensor(in).fill_(2); }, {.writes = {bytes_of(in)}});
    const auto work = group->start({.kind = Kind::all_reduce, .input = in, .output = out});
    submit(device.stream(), [] {}, {.reads = {bytes_of(in)}});
    work->wait();
    submit(device.stream(), [=] { at::Tensor(later).copy_(out); },
           {.reads = {bytes_of(out)}, .writes = {bytes_of(later), bytes_of(in)}});
    device.synchronize([&] { communicator.check(); });
    simulated::host_accesses({.reads = {bytes_of(later), bytes_of(out)}});
  });
  CHECK(errors == none(2));
}

// Returns the races of `scenario` under a seed, with a table that `change` edits.
template <class Change>
Found found(void (*scenario)(), uint64_t seed, Change change) {
  simulated::restart(seed);
  change(simulated::table());
  scenario();
  return simulated::races();
}

TEST_CASE("devices, copies, uploads and collectives have no races, in any order") {
  const auto scenario = GENERATE(&offload, &upload, &reduce);
  for (uint64_t seed = 0; seed < 20; ++seed) {
    REQUIRE(found(scenario, seed, [](Calls&) {}) == Found{});
    REQUIRE(simulated::broken_rules() == Found{});
  }
}

cudaError_t no_wait(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t no_record(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t always_passed(cudaEvent_t) { return cudaSuccess; }
cudaError_t no_device(int) { return cudaSuccess; }

TEST_CASE("without the waits of streams races are found, in any order") {
  const auto change = [](Calls& calls) { calls.cudaStreamWaitEvent = no_wait; };
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto of_copies = found(&offload, seed, change), of_sums = found(&reduce, seed, change);
    const auto has = [](const Found& races, const char* race) {
      return std::find(races.begin(), races.end(), race) != races.end();
    };
    CHECK(has(of_copies, "a copy reads what an op writes"));
    CHECK(has(of_copies, "an op reads what a copy writes"));
    CHECK(has(of_sums, "NCCL reads what an op writes"));
    CHECK(has(of_sums, "an op reads what NCCL writes"));
  }
}

TEST_CASE("without records of events races are found, in any order") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto races = found(&offload, seed,
                             [](Calls& calls) { calls.cudaEventRecord = no_record; });
    CHECK(races.size() >= 2);
  }
}

TEST_CASE("a host that asks no event overwrites a buffer whose upload may not have run") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const auto races = found(&upload, seed,
                             [](Calls& calls) { calls.cudaEventQuery = always_passed; });
    CHECK(races == Found{"the host writes what a copy reads"});
  }
}

TEST_CASE("without guards of the current GPU a rule is broken, in any order") {
  for (uint64_t seed = 0; seed < 5; ++seed) {
    simulated::restart(seed);
    const auto device = make_device({.index = 2});
    simulated::table().cudaSetDevice = no_device;
    CHECK_THROWS(device->allocate(64, false));
    CHECK(simulated::broken_rules() == Found{"memory is set by a stream of its device"});
  }
}

TEST_CASE("the detector orders work by streams, events and waits of the host alone") {
  simulated::restart(1);
  Stream one(1, Stream::Priority::low), other(1, Stream::Priority::low);
  const auto x = at::zeros({4}), y = at::zeros({4});
  const auto write = [&](const Stream& s, const at::Tensor& t) {
    submit(s.get(), [] {}, {.writes = {bytes_of(t)}});
  };
  const auto read = [&](const Stream& s, const at::Tensor& t) {
    submit(s.get(), [] {}, {.reads = {bytes_of(t)}});
  };
  write(one, x);
  write(one, x);    // the same stream
  write(other, y);  // other bytes
  read(other, y);
  read(one, x);
  CHECK(simulated::races() == Found{});
  Event event(1);
  event.record(one.get());
  event.block(other.get());
  write(other, x);
  CHECK(simulated::races() == Found{});
  Event done(1);
  done.record(other.get());
  done.wait();
  simulated::host_accesses({.writes = {bytes_of(x)}});
  read(one, x);  // submitted after the host's access
  CHECK(simulated::races() == Found{});
  read(other, x);  // two reads
  CHECK(simulated::races() == Found{});
  submit(one.get(), [] {}, {.writes = {{x.const_data_ptr<float>() + 3, 1}}});
  CHECK(simulated::races() == Found{"an op writes what an op reads"});
}

}  // namespace
}  // namespace perigee::cuda
