// Devices and NCCL groups on the simulated machine: guards, events, the order of connections,
// collectives, time-outs and failures. Ranks are threads, each with a GPU of its own.
#include <atomic>
#include <numeric>
#include <random>
#include <set>
#include <thread>

#include "cuda/device.h"
#include "exec/comm/threads.h"
#include "tests/cuda/simulated/machine.h"
#include "tests/cuda/simulated/ranks.h"

namespace perigee::cuda {
namespace {

using namespace std::chrono_literals;
using exec::Collective;
using exec::Group;
using Kind = Collective::Kind;

TEST_CASE("the simulated GPU refuses an event on a stream of another GPU") {
  simulated::restart(1);
  Event event(1);
  Stream stream(2, Stream::Priority::low);
  CHECK_THROWS_WITH(event.record(stream.get()), Catch::Contains("cudaEventRecord"));
  CHECK(simulated::broken_rules().size() == 1);
}

TEST_CASE("a device works from threads whose current GPU is another") {
  simulated::restart(2);
  const auto device = make_device({.index = 2});
  CHECK(simulated::current_device() == 0);
  const auto memory = device->allocate(256, true);
  const auto pinned = device->allocate_host(256);
  {
    const auto entered = device->enter();
    CHECK(simulated::current_device() == 2);
  }
  CHECK(simulated::current_device() == 0);
  const auto mark = device->mark();
  auto to = at::from_blob(memory.get(), {64}), from = at::full({64}, 3.0f);
  const auto host = at::from_blob(pinned.get(), {64});
  device->upload(to, from);
  const auto copied = device->copy(host, to, true);
  device->copy(to, from, false);
  copied->wait();
  device->synchronize({});
  CHECK(device->time(mark) > 0);
  CHECK(host[63].item<float>() == 3);
  CHECK(simulated::broken_rules() == std::vector<std::string>{});
}

TEST_CASE("float32 products and convolutions use TF32 only where the job allows it") {
  simulated::restart(1);
  simulated::tf32 = true;  // as cuDNN's default
  const auto kind = make_device({.index = 0})->kind();
  CHECK_FALSE(simulated::tf32);
  // Times and traces are recorded by kind.
  CHECK(make_device({.index = 0, .tf32 = true})->kind() == kind + " tf32");
  CHECK(simulated::tf32);
}

TEST_CASE("a copy to the host waits for the work before it, and ops that wait for it run after") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    simulated::restart(seed);
    const auto device = make_device({.index = 1});
    const auto entered = device->enter();
    auto value = at::zeros({8}), host = at::zeros({8}), later = at::zeros({8});
    simulated::submit(device->stream(), [&] { value.fill_(5); });
    const auto copy = device->copy(host, value, true);
    copy->wait();
    simulated::submit(device->stream(), [&] { later.copy_(host); });
    device->synchronize({});
    REQUIRE(later[7].item<float>() == 5);
  }
}

TEST_CASE("a copy that nothing waits for may run later: the simulated order shows it") {
  std::set<float> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    simulated::restart(seed);
    const auto device = make_device({.index = 1});
    const auto entered = device->enter();
    auto value = at::full({8}, 5.0f), host = at::zeros({8}), later = at::zeros({8});
    const auto copy = device->copy(host, value, true);
    simulated::submit(device->stream(), [&] { later.copy_(host); });
    device->synchronize({});
    seen.insert(later[7].item<float>());
    copy->wait();
    device->synchronize({});
  }
  CHECK(seen == std::set<float>{0, 5});
}

// Returns an operand of the rank, and space for the result.
exec::Transfer transfer_of(Kind kind, int64_t rank, int64_t n, bool uneven, mesh::Reduce reduce) {
  exec::Transfer t{.kind = kind, .reduce = reduce};
  std::vector<int64_t> counts(n);
  for (int64_t i = 0; i < n; ++i) counts[i] = uneven ? i * 2 : 3;
  const auto sum = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto operand = [&](int64_t size) {
    return at::arange(size, at::kDouble).add(static_cast<double>(100 * rank));
  };
  switch (kind) {
    case Kind::all_gather:
      t.input = operand(counts[rank]);
      t.output = at::zeros({sum}, at::kDouble);
      t.output_counts = counts;
      break;
    case Kind::reduce_scatter:
      t.input = operand(sum);
      t.output = at::zeros({counts[rank]}, at::kDouble);
      t.input_counts = counts;
      t.workspace = at::zeros({sum * n}, at::kDouble);
      break;
    case Kind::all_to_all:
      t.input_counts.resize(n);
      t.output_counts.resize(n);
      for (int64_t i = 0; i < n; ++i) {
        t.input_counts[i] = uneven ? (rank + 2 * i) % 3 : 2;
        t.output_counts[i] = uneven ? (i + 2 * rank) % 3 : 2;
      }
      t.input = operand(std::accumulate(t.input_counts.begin(), t.input_counts.end(), int64_t{0}));
      t.output = at::zeros(
          {std::accumulate(t.output_counts.begin(), t.output_counts.end(), int64_t{0})},
          at::kDouble);
      break;
    default:
      t.input = operand(5);
      t.output = at::zeros({5}, at::kDouble);
      t.peer = n - 1;
  }
  return t;
}

TEST_CASE("collectives by NCCL equal those of threads, for even and uneven parts") {
  const int world = GENERATE(2, 3, 4);
  const uint64_t seed = GENERATE(1, 2, 3, 4, 5);
  struct Case {
    Kind kind;
    bool uneven;
    mesh::Reduce reduce;
  };
  std::vector<Case> cases;
  for (const bool uneven : {false, true}) {
    for (const auto kind : {Kind::all_gather, Kind::all_to_all, Kind::reduce_scatter}) {
      cases.push_back({kind, uneven, mesh::Reduce::sum});
    }
    cases.push_back({Kind::reduce_scatter, uneven, mesh::Reduce::max});
  }
  for (const auto reduce : {mesh::Reduce::sum, mesh::Reduce::average, mesh::Reduce::min}) {
    cases.push_back({Kind::all_reduce, false, reduce});
  }
  cases.push_back({Kind::broadcast, false, mesh::Reduce::sum});
  std::vector<std::vector<at::Tensor>> expected(world), got(world);
  exec::run_ranks(world, [&](exec::Communicator& communicator) {
    const auto group = communicator.group("all", first_ranks(world));
    for (const auto& c : cases) {
      auto t = transfer_of(c.kind, communicator.rank(), world, c.uneven, c.reduce);
      group->start_flat(t)->wait();
      expected[communicator.rank()].push_back(t.output);
    }
  });
  simulated::restart(seed);
  const auto errors = run_gpus(
      world, 20s, [&](exec::Communicator& communicator, CudaDevice& device) {
        const auto group = communicator.group("all", first_ranks(world));
        const auto rank = communicator.rank();
        const auto entered = device.enter();
        std::vector<exec::Transfer> transfers;
        for (const auto& c : cases) {
          transfers.push_back(transfer_of(c.kind, rank, world, c.uneven, c.reduce));
          // The operand is computed late, and the result is read by a later op.
          auto& t = transfers.back();
          const auto operand = t.input.clone();
          t.input.zero_();
          simulated::submit(device.stream(),
                            [to = t.input, operand] { at::Tensor(to).copy_(operand); });
          group->start_flat(t)->wait();
          auto seen = at::zeros_like(t.output);
          simulated::submit(device.stream(),
                            [seen, from = t.output] { at::Tensor(seen).copy_(from); });
          got[rank].push_back(seen);
        }
        device.synchronize([&] { communicator.check(); });
      });
  REQUIRE(errors == none(world));
  for (int rank = 0; rank < world; ++rank) {
    for (size_t c = 0; c < cases.size(); ++c) {
      INFO("rank " << rank << ", " << exec::name_of(cases[c].kind) << " " << cases[c].uneven);
      REQUIRE(at::equal(got[rank][c], expected[rank][c]));
    }
  }
  CHECK(simulated::broken_rules() == std::vector<std::string>{});
}

// Each rank of a ring sends to the next one and receives from the one before. `connect`: the pairs
// are connected before.
std::vector<std::string> ring(int world, bool connect, std::chrono::milliseconds timeout,
                              std::vector<float>& received) {
  received.assign(world, 0);
  return run_gpus(world, timeout, [&](exec::Communicator& communicator, CudaDevice& device) {
    const auto group = communicator.group("ring", first_ranks(world));
    const int64_t rank = communicator.rank(), next = (rank + 1) % world,
                  last = (rank + world - 1) % world;
    if (connect) group->connect_pairs({{rank, next}, {last, rank}});
    const auto entered = device.enter();
    const auto sent = at::full({4}, static_cast<float>(rank)), got = at::zeros({4});
    const auto send = group->start({.kind = Kind::send, .input = sent, .peer = next});
    const auto receive = group->start({.kind = Kind::receive, .output = got, .peer = last});
    receive->wait();
    send->wait();
    device.synchronize([&] { communicator.check(); });
    received[rank] = got[3].item<float>();
  });
}

TEST_CASE("messages around a ring go through pairs that are connected in one order") {
  const int world = GENERATE(3, 4);
  simulated::restart(GENERATE(7, 8, 9));
  std::vector<float> received;
  REQUIRE(ring(world, true, 20s, received) == none(world));
  for (int rank = 0; rank < world; ++rank) {
    CHECK(received[rank] == static_cast<float>((rank + world - 1) % world));
  }
  CHECK(simulated::broken_rules() == std::vector<std::string>{});
}

TEST_CASE("a ring whose ranks connect at their first message ends at the time-out") {
  simulated::restart(7);
  std::vector<float> received;
  const auto errors = ring(3, false, 600ms, received);
  for (const auto& error : errors) CHECK_FALSE(error.empty());
}

TEST_CASE("a rank that ends before its first message is named within the time-out") {
  simulated::restart(5);
  simulated::table().ncclRecv = [](void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
    return ncclSuccess;
  };
  const auto errors = run_gpus(2, 600ms, [&](exec::Communicator& communicator, CudaDevice&) {
    communicator.group("ring", first_ranks(2))->connect_pairs({{0, 1}});
  });
  CHECK_THAT(errors[0],
             Catch::Contains("rank 0: the first message of rank 0 to rank 1 over ring "
                             "(ranks 0,1) must finish within 0.6 s, but got: no answer"));
}

TEST_CASE("a collective that a rank does not join names the rank's collective and the time-out") {
  simulated::restart(3);
  const auto errors = run_gpus(2, 600ms, [&](exec::Communicator& communicator, CudaDevice& device) {
    const auto group = communicator.group("data", first_ranks(2));
    const auto entered = device.enter();
    if (communicator.rank() == 1) {
      std::this_thread::sleep_for(2s);
      throw std::runtime_error("rank 1 did something else");
    }
    const auto x = at::zeros({4});
    group->start({.kind = Kind::all_reduce, .input = x, .output = x})->wait();
    device.synchronize([&] { communicator.check(); });
  });
  CHECK_THAT(errors[0], Catch::Contains("rank 0: all_reduce over data (ranks 0,1) must finish "
                                        "within 0.6 s, but got: no answer"));
}

TEST_CASE("the reason of a rank that fails reaches the ranks that wait for it") {
  simulated::restart(4);
  const auto errors = run_gpus(3, 20s, [&](exec::Communicator& communicator, CudaDevice& device) {
    const auto group = communicator.group("data", first_ranks(3));
    const auto entered = device.enter();
    if (communicator.rank() == 2) throw std::runtime_error("its disk is full");
    const auto x = at::zeros({4});
    group->start({.kind = Kind::all_reduce, .input = x, .output = x})->wait();
    device.synchronize([&] { communicator.check(); });
  });
  CHECK_THAT(errors[0], Catch::Contains("its disk is full"));
  CHECK_THAT(errors[1], Catch::Contains("its disk is full"));
}

TEST_CASE("all groups of a rank are aborted together, since NCCL may wait for all their kernels") {
  const bool fails = GENERATE(true, false);
  simulated::restart(4);
  const auto timeout = fails ? std::chrono::milliseconds(20s) : 300ms;
  const auto errors = run_gpus(
      2, timeout, [&](exec::Communicator& communicator, CudaDevice& device) {
        const auto data = communicator.group("data", {0, 1}),
                   tensor = communicator.group("tensor", {0, 1});
        const auto entered = device.enter();
        if (communicator.rank() == 1) {
          if (fails) throw std::runtime_error("its disk is full");
          return;
        }
        const auto x = at::zeros({4}), y = at::zeros({4});
        const auto first = data->start({.kind = Kind::all_reduce, .input = x, .output = x}),
                   second = tensor->start({.kind = Kind::all_reduce, .input = y, .output = y});
        first->wait();
        second->wait();
        device.synchronize([&] { communicator.check(); });
      });
  CHECK_THAT(errors[0], Catch::Contains(fails ? "its disk is full" : "got: no answer"));
  CHECK(simulated::broken_rules() == std::vector<std::string>{});
}

TEST_CASE("a collective is not late while it waits for computation before it") {
  simulated::restart(5);
  const auto errors = run_gpus(2, 600ms, [&](exec::Communicator& communicator, CudaDevice& device) {
    const auto group = communicator.group("data", first_ranks(2));
    const auto entered = device.enter();
    simulated::hold(device.stream());
    const auto x = at::ones({4});
    group->start({.kind = Kind::all_reduce, .input = x, .output = x})->wait();
    const auto begin = std::chrono::steady_clock::now();
    bool held = true;
    device.synchronize([&] {
      communicator.check();
      if (held && std::chrono::steady_clock::now() - begin > 1500ms) {
        simulated::release(device.stream());
        held = false;
      }
    });
    if (x[0].item<float>() != 2) throw std::runtime_error("wrong sum");
  });
  CHECK(errors == none(2));
}

}  // namespace
}  // namespace perigee::cuda
