#include "exec/comm/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "base/network/address.h"
#include "compile/draft/collective.h"
#include "exec/comm/gloo.h"
#include "exec/comm/shared/over_hosts.h"
#include "exec/comm/threads.h"
#include "tests/exec/processes.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using mesh::Reduce;
using namespace std::chrono_literals;

// Returns a rank's operand: distinct small integers, exact in every type.
at::Tensor operand_of(int64_t rank, std::vector<int64_t> shape, at::ScalarType type) {
  int64_t n = 1;
  for (auto s : shape) n *= s;
  return ((at::arange(n) % 13) + rank * 3).view(shape).to(type);
}

// Checks every collective against ATen's op on all ranks' operands.
void all_collectives(Communicator& communicator) {
  const int64_t n = communicator.world(), me = communicator.rank();
  const auto group = communicator.group("data", range(n));
  for (auto type : {at::kComplexFloat, at::kComplexDouble}) {
    const auto real = c10::toRealValueType(type);
    std::vector<at::Tensor> all;
    for (int64_t r = 0; r < n; ++r) {
      all.push_back(at::complex(operand_of(r, {5000}, real), operand_of(r + 7, {5000}, real)));
    }
    for (auto [reduce, expected] : {std::pair{Reduce::sum, at::stack(all).sum(0)},
                                    {Reduce::average, at::stack(all).mean(0)}}) {
      auto out = at::empty({5000}, all[0].options());
      group->run({.kind = Collective::Kind::all_reduce,
                  .input = all[me],
                  .output = out,
                  .reduce = reduce});
      must(at::allclose(out, expected), "all_reduce of complex numbers");
    }
  }
  for (auto type : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kShort, at::kByte}) {
    for (int64_t size : {3, 5000, 300000}) {
      std::vector<at::Tensor> all;
      for (int64_t r = 0; r < n; ++r) all.push_back(operand_of(r, {size}, type));
      const auto stack = at::stack(all).to(at::kDouble);
      for (auto [reduce, expected] : {std::pair{Reduce::sum, stack.sum(0)},
                                      {Reduce::max, stack.amax(0)},
                                      {Reduce::min, stack.amin(0)},
                                      {Reduce::average, stack.mean(0)}}) {
        auto out = at::empty({size}, all[0].options());
        group->run({.kind = Collective::Kind::all_reduce,
                    .input = all[me],
                    .output = out,
                    .reduce = reduce});
        must(at::equal(out, expected.to(type)), "all_reduce");
        auto in_place = all[me].clone();
        group->run({.kind = Collective::Kind::all_reduce,
                    .input = in_place,
                    .output = in_place,
                    .reduce = reduce});
        must(at::equal(in_place, out), "all_reduce in place");
      }
    }
    // Uneven parts along every dim.
    const std::vector<int64_t> shape = {4, 5, 7};
    const auto whole = operand_of(1, shape, type);
    for (int64_t dim : {0, 1, 2}) {
      const auto mine = mesh::split(shape[dim], n, me);
      const auto part = whole.narrow(dim, mine.begin, mine.length);
      auto gathered = at::empty(shape, whole.options());
      group->run(
          {.kind = Collective::Kind::all_gather, .input = part, .output = gathered, .dim = dim});
      must(at::equal(gathered, whole), "all_gather");
      auto scattered = at::empty(part.sizes(), whole.options());
      group->run({.kind = Collective::Kind::reduce_scatter,
                  .input = whole + me,
                  .output = scattered,
                  .dim = dim});
      must(at::equal(scattered, part * n + n * (n - 1) / 2), "reduce_scatter");
      for (int64_t other : {0, 1, 2}) {
        if (other == dim) continue;
        // From a shard of `dim` to a shard of `other`.
        const auto to = mesh::split(shape[other], n, me);
        auto exchanged = at::empty(whole.narrow(other, to.begin, to.length).sizes(),
                                   whole.options());
        group->run({.kind = Collective::Kind::all_to_all,
                    .input = part.contiguous(),
                    .output = exchanged,
                    .dim = other,
                    .other_dim = dim});
        must(at::equal(exchanged, whole.narrow(other, to.begin, to.length)), "all_to_all");
      }
    }
    auto out = at::empty(shape, whole.options());
    const int64_t root = n - 1;
    group->run({.kind = Collective::Kind::broadcast,
                .input = me == root ? whole : at::Tensor(),
                .output = out,
                .peer = root});
    must(at::equal(out, whole), "broadcast");
  }
  // A ring of messages, each rank sending before it receives.
  auto received = at::empty({3000});
  const auto sent = operand_of(me, {3000}, at::kFloat);
  const auto sending = group->start(
      {.kind = Collective::Kind::send, .input = sent, .peer = (me + 1) % n});
  const auto receiving = group->start(
      {.kind = Collective::Kind::receive, .output = received, .peer = (me + n - 1) % n});
  sending->wait();
  receiving->wait();
  must(at::equal(received, operand_of((me + n - 1) % n, {3000}, at::kFloat)), "message");
  // Labels are counted in integers and float64 scalars.
  auto count = at::full({}, me + 1, at::kLong);
  group->run({.kind = Collective::Kind::all_reduce, .input = count, .output = count});
  must(count.item<int64_t>() == n * (n + 1) / 2, "integers");
  // Several collectives in flight on two groups.
  const auto second = communicator.group("tensor", range(n));
  std::vector<at::Tensor> tensors;
  std::vector<std::shared_ptr<Work>> works;
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(at::full({1000}, static_cast<double>(me + i)));
    works.push_back((i % 2 ? group : second)
                        ->start({.kind = Collective::Kind::all_reduce,
                                 .input = tensors.back(),
                                 .output = tensors.back()}));
  }
  for (int i = 9; i >= 0; --i) {
    works[i]->wait();
    must(tensors[i][0].item<double>() == n * (n - 1) / 2 + i * n, "in flight");
    must(works[i]->ended >= works[i]->began && works[i]->began > 0, "times");
  }
  // One name with other ranks is another group, as in another plan's mesh.
  auto fewer = range(n);
  fewer.erase(fewer.begin());
  for (const auto& ranks : {fewer, range(n), fewer}) {
    if (std::ranges::find(ranks, me) == ranks.end()) continue;
    auto ones = at::ones({3});
    communicator.group("data", ranks)->run({.input = ones, .output = ones});
    must(ones[0].item<int64_t>() == std::ssize(ranks), "ranks of a group");
  }
}

TEST_CASE("every collective between threads equals ATen's op on all operands") {
  run_ranks(GENERATE(1, 2, 3, 4),
            [](Communicator& c) {
              if (c.world() > 1) all_collectives(c);
            },
            {.timeout = 30s});
}

TEST_CASE("every collective between Gloo processes equals ATen's op on all operands") {
  for (const auto& error : fork_ranks(GENERATE(2, 3), all_collectives, 20s, Carrier::gloo)) {
    REQUIRE(error == "");
  }
}

TEST_CASE("every collective between processes of one host equals ATen's op on all operands") {
  for (const auto& error : fork_ranks(GENERATE(2, 3, 4), all_collectives)) REQUIRE(error == "");
}

TEST_CASE("every collective over several hosts equals ATen's op on all operands") {
  const auto hosts = GENERATE("AABB", "AAAB", "ABBA", "ABA", "ABCAB");
  for (const auto& error : fork_over_hosts(hosts, all_collectives)) CHECK(error == "");
}

// Checks every collective that has parts with parts of different sizes, empty ones among them.
// Operands lie in `memory`, if any.
void uneven_parts(Communicator& c, SharedMemory* memory) {
  const int64_t n = c.world(), me = c.rank();
  const auto group = c.group("data", range(n));
  must(dynamic_cast<GroupOverHosts*>(group.get()) != nullptr, "a group over hosts");
  std::vector<std::shared_ptr<std::byte>> frames;
  const auto placed = [&](const at::Tensor& t) {
    if (!memory) return t.clone();
    frames.push_back(memory->allocate(static_cast<int64_t>(t.nbytes()) + 1));
    return at::from_blob(frames.back().get(), t.sizes(), t.options()).copy_(t);
  };
  const auto run = [&](const Transfer& transfer) { group->start_flat(transfer)->wait(); };
  for (auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (auto counts :
         {std::vector<int64_t>{0, 150'000, 3, 7, 100'000}, {1, 0, 11, 2, 5}, {1, 0, 1, 1, 1}}) {
      frames.clear();
      counts.resize(static_cast<size_t>(n));
      const auto whole = operand_of(0, {std::reduce(counts.begin(), counts.end())}, type);
      const auto part = [&](const at::Tensor& t) { return t.split_with_sizes(counts)[me]; };
      for (const bool in_place : {true, false}) {
        const auto gathered = placed(at::zeros_like(whole));
        part(gathered).copy_(part(whole));
        run({.kind = Collective::Kind::all_gather,
             .input = in_place ? part(gathered) : placed(part(whole)),
             .output = gathered,
             .output_counts = counts});
        must(at::equal(gathered, whole), "all_gather");
      }
      const auto sum = placed(whole * (me + 1));
      run({.input = sum, .output = sum});
      must(at::equal(sum, whole * (n * (n + 1) / 2)), "all_reduce in place");
      for (const bool least : {false, true}) {
        auto elements = compile::workspace_elements("comm::reduce_scatter", counts);
        if (least && elements < 1000) elements = std::min(elements, 2 * n);
        for (auto [reduce, factor] : {std::pair{Reduce::sum, n * (n + 1) / 2.},
                                      {Reduce::average, (n + 1) / 2.},
                                      {Reduce::max, n * 1.}}) {
          const auto operand = whole * (me + 1), sent = placed(operand);
          const auto scattered = placed(at::zeros_like(part(whole)));
          run({.kind = Collective::Kind::reduce_scatter,
               .input = sent,
               .output = scattered,
               .reduce = reduce,
               .input_counts = counts,
               .workspace = placed(at::zeros({elements}, whole.options()))});
          must(at::equal(scattered, (part(whole).to(at::kDouble) * factor).to(type)),
               "reduce_scatter");
          must(at::equal(sent, operand), "reduce_scatter's operand");
        }
      }
    }
    std::vector<int64_t> sent, received;
    std::vector<at::Tensor> inputs, outputs;
    for (int64_t other = 0; other < n; ++other) {
      sent.push_back((me + 2 * other) % 5 * 1000);
      received.push_back((other + 2 * me) % 5 * 1000);
      inputs.push_back(operand_of(10 * me + other, {sent.back()}, type));
      outputs.push_back(operand_of(10 * other + me, {received.back()}, type));
    }
    const auto exchanged = placed(at::zeros_like(at::cat(outputs)));
    run({.kind = Collective::Kind::all_to_all,
         .input = placed(at::cat(inputs)),
         .output = exchanged,
         .input_counts = sent,
         .output_counts = received});
    must(at::equal(exchanged, at::cat(outputs)), "all_to_all");
    for (int64_t root = 0; root < n; ++root) {
      const auto whole = operand_of(root, {70'001}, type);
      const auto out = placed(me == root ? whole : at::zeros_like(whole));
      run({.kind = Collective::Kind::broadcast,
           .input = me == root ? out : at::Tensor(),
           .output = out,
           .peer = root});
      must(at::equal(out, whole), "broadcast in place");
    }
  }
}

TEST_CASE("parts of any sizes go over several hosts, empty ones among them") {
  const auto hosts = GENERATE("AABB", "AAAB", "ABBA", "ABCAB", "AABCD");
  const bool in_frames = GENERATE(true, false);
  std::shared_ptr<SharedMemory> memory;
  const auto body = [&](Communicator& c) { uneven_parts(c, in_frames ? memory.get() : nullptr); };
  for (const auto& error : fork_over_hosts(hosts, body, 20s, nullptr, &memory)) {
    INFO(hosts);
    CHECK(error == "");
  }
}

TEST_CASE("messages between all pairs of ranks over hosts cross collectives of their group") {
  const auto hosts = GENERATE("AABB", "AAB");
  const auto body = [](Communicator& c) {
    const int64_t n = c.world(), me = c.rank();
    const auto group = c.group("data", range(n));
    std::vector<Group::Pair> pairs;
    std::vector<at::Tensor> sent, received;
    std::vector<std::shared_ptr<Work>> works;
    auto gathered = at::zeros({n * 3});
    for (int64_t other = 0; other < n; ++other) {
      received.push_back(at::zeros({3}));
      if (other == me) continue;
      pairs.insert(pairs.end(), {{me, other}, {other, me}});
    }
    group->connect_pairs(pairs);
    for (int64_t other = 0; other < n; ++other) {
      sent.push_back(at::full({3}, static_cast<double>(10 * me + other)));
      if (other == me) continue;
      works.push_back(
          group->start({.kind = Collective::Kind::send, .input = sent.back(), .peer = other}));
    }
    // The peers receive these parts before those messages, which are as long.
    group->run({.kind = Collective::Kind::all_gather,
                .input = at::full({3}, static_cast<double>(me)),
                .output = gathered});
    must(at::equal(gathered, at::arange(n, at::kFloat).repeat_interleave(3)), "all_gather");
    for (int64_t other = 0; other < n; ++other) {
      if (other == me) continue;
      group->run({.kind = Collective::Kind::receive, .output = received[other], .peer = other});
      must(received[other].eq(10 * other + me).all().item<bool>(), "message");
    }
    for (const auto& work : works) work->wait();
  };
  for (const auto& error : fork_over_hosts(hosts, body)) CHECK(error == "");
}

TEST_CASE("sums of threads are bit-equal from run to run and on all ranks") {
  at::manual_seed(1);
  const auto data = at::randn({4, 100000});
  std::vector<at::Tensor> results(4);
  at::Tensor first;
  for (int round = 0; round < 5; ++round) {
    run_ranks(4, [&](Communicator& c) {
      auto out = at::empty({100000});
      c.group("data", range(4))
          ->run({.kind = Collective::Kind::all_reduce, .input = data[c.rank()], .output = out});
      results[c.rank()] = out;
    });
    if (round == 0) first = results[0];
    for (const auto& result : results) REQUIRE(at::equal(result, first));
  }
}

TEST_CASE("a group of one rank is the identity") {
  const auto communicator = single_communicator();
  const auto group = communicator->group("data", {0});
  const auto x = at::randn({3, 4});
  auto out = at::empty({3, 4});
  for (auto kind : {Collective::Kind::all_reduce, Collective::Kind::all_gather,
                    Collective::Kind::reduce_scatter, Collective::Kind::broadcast}) {
    group->run({.kind = kind, .input = x, .output = out.zero_()});
    REQUIRE(at::equal(out, x));
  }
  REQUIRE_THROWS_WITH(group->run({.kind = Collective::Kind::send, .input = x}),
                      Catch::Contains("another rank"));
  REQUIRE_THROWS_WITH(communicator->group("data", {1}), Catch::Contains("rank 0"));
}

TEST_CASE("a rank that throws ends the waits of the others") {
  const auto body = [](Communicator& c) {
    if (c.rank() == 2) throw std::runtime_error("the disk is full");
    auto x = at::ones({10});
    c.group("data", range(3))->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
  };
  REQUIRE_THROWS_WITH(run_ranks(3, body, {.timeout = 30s}), Catch::Contains("the disk is full"));
}

TEST_CASE("a rank that misses the time-out is named with its group") {
  const auto body = [](Communicator& c) {
    if (c.rank() == 1) return;
    auto x = at::ones({10});
    c.group("data", range(2))->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
  };
  REQUIRE_THROWS_WITH(
      run_ranks(2, body, {.timeout = 200ms}),
      Catch::Contains("all_reduce over data") && Catch::Contains("rank 1 did not join"));
}

TEST_CASE("ranks that start different collectives fail with both names") {
  const auto body = [](Communicator& c) {
    auto x = at::ones({c.rank() == 0 ? 10 : 11});
    c.group("data", range(2))->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
  };
  REQUIRE_THROWS_WITH(run_ranks(2, body, {.timeout = 30s}), Catch::Contains("same collective"));
  REQUIRE_THROWS_WITH(
      run_ranks(2,
                [](Communicator& c) {
                  auto x = at::ones({10});
                  c.group("data", range(2))
                      ->run({.kind = Collective::Kind::all_gather, .input = x, .output = x});
                }),
      Catch::Contains("all_gather over data") && Catch::Contains("Float[10]"));
}

TEST_CASE(
    "a Gloo rank that fails or stops responding is an error on the others within the time-out") {
  const auto failing = fork_ranks(
      2,
      [](Communicator& c) {
        auto x = at::ones({10});
        const auto group = c.group("data", range(2));
        group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
        if (c.rank() == 1) throw std::runtime_error("the disk is full");
        group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
      },
      5s, Carrier::gloo);
  REQUIRE_THAT(failing[0], Catch::Contains("rank 0: all_reduce over data") &&
                               Catch::Contains("the disk is full"));
  const auto silent = fork_ranks(
      2,
      [](Communicator& c) {
        auto x = at::ones({10});
        const auto group = c.group("data", range(2));
        if (c.rank() == 1) usleep(2500000);
        group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
      },
      1s, Carrier::gloo);
  REQUIRE_THAT(silent[0], Catch::Contains("rank 0: all_reduce over data (ranks 0,1)"));
}

TEST_CASE("groups of one process may start their first collectives at the same time") {
  const auto carrier = GENERATE(Carrier::gloo, Carrier::shared);
  const auto body = [](Communicator& communicator) {
    for (int round = 0; round < 8; ++round) {
      std::vector<std::shared_ptr<Group>> groups;
      for (int i = 0; i < 16; ++i) {
        groups.push_back(communicator.group("g" + std::to_string(16 * round + i), {0, 1}));
      }
      std::vector<std::shared_ptr<Work>> works;
      for (const auto& group : groups)
        works.push_back(group->start({.kind = Collective::Kind::barrier}));
      for (const auto& work : works) work->wait();
    }
  };
  const auto errors = fork_ranks(2, body, 20s, carrier);
  CHECK(errors == std::vector<std::string>{"", ""});
}

TEST_CASE("a Gloo job names the rank that does not join") {
  const auto listener = listen_at("127.0.0.1", 0, false);
  REQUIRE_THROWS_WITH(gloo_communicator({.port = listener.port,
                                         .rank = 0,
                                         .world = 3,
                                         .serve = true,
                                         .listen_socket = listener.socket,
                                         .timeout = 1s}),
                      Catch::Contains("rank 1, 2 did not join"));
}

}  // namespace
TEST_CASE("an echo returns the rank's own operand and waits for no other rank") {
  const auto echo = echo_communicator(1, 3);
  const auto group = echo->group("data", {0, 1, 2});
  const auto of = [](std::vector<float> numbers) { return at::tensor(numbers); };
  const auto nothing = [](int64_t n) { return at::full({n}, -1.0F); };
  const auto run = [&](Transfer transfer) {
    group->start_flat(transfer)->wait();
    return transfer.output;
  };
  CHECK(at::equal(
      run({.kind = Collective::Kind::all_reduce, .input = of({1, 2}), .output = nothing(2)}),
      of({1, 2})));
  // Of uneven parts, the smaller of both lengths is copied.
  CHECK(at::equal(run({.kind = Collective::Kind::all_gather,
                       .input = of({1, 2}),
                       .output = nothing(6),
                       .output_counts = {3, 2, 1}}),
                  of({1, 2, 0, 1, 2, 1})));
  CHECK(at::equal(run({.kind = Collective::Kind::reduce_scatter,
                       .input = of({1, 2, 3, 4}),
                       .output = nothing(2),
                       .input_counts = {1, 2, 1}}),
                  of({2, 3})));
  CHECK(at::equal(run({.kind = Collective::Kind::all_to_all,
                       .input = of({1, 2, 3, 4}),
                       .output = nothing(4),
                       .input_counts = {1, 2, 1},
                       .output_counts = {2, 2, 0}}),
                  of({1, 0, 2, 3})));
  CHECK(at::equal(run({.kind = Collective::Kind::receive, .output = nothing(1), .peer = 0}),
                  nothing(1)));
  group->run({.kind = Collective::Kind::barrier});
}

TEST_CASE("a rank that stops before its group is connected is named within the time-out and 2 s") {
  const auto carrier = GENERATE(Carrier::gloo, Carrier::shared);
  const bool dies = GENERATE(true, false);  // or stands still
  const auto errors = fork_ranks(
      3,
      [dies](Communicator& c) {
        if (c.rank() == 1) {
          if (dies) _exit(1);
          usleep(4000000);
          throw std::runtime_error("too late");
        }
        const auto begin = std::chrono::steady_clock::now();
        try {
          c.group("first", range(3));
        } catch (const std::exception&) {
          must(std::chrono::steady_clock::now() - begin <= 1s + 2s, "time to the error");
          throw;
        }
      },
      1s, carrier);
  for (const int rank : {0, 2}) {
    INFO(errors[rank]);
    CHECK_THAT(errors[rank], Catch::Contains("must connect to the group first (ranks 0,1,2)") &&
                                 Catch::Contains("rank 1 does not answer"));
  }
}

TEST_CASE("ranks with different settings fail on all ranks with the names and values") {
  const Settings settings = {{"optimizer.lr", "0.1"}, {"seed", "1"}};
  CHECK(settings_difference(print_settings(settings), "rank 3", settings) == "");
  const auto other = settings_difference(print_settings(settings), "rank 3",
                                         {{"optimizer.lr", "0.2"}, {"dropout", "0.5"}});
  CHECK_THAT(other, Catch::Contains("optimizer.lr is 0.1 on rank 0 and 0.2 on rank 3") &&
                        Catch::Contains("dropout is not set on rank 0 and 0.5 on rank 3") &&
                        Catch::Contains("seed is 1 on rank 0 and not set on rank 3"));
  CHECK_THAT(settings_difference(R"({"version": "9.9", "settings": []})", "rank 1", settings),
             Catch::Contains("9.9"));
  CHECK_THAT(settings_difference("GET / HTTP/1.1", "rank 1", settings),
             Catch::Contains("another program"));
}

}  // namespace perigee::exec
