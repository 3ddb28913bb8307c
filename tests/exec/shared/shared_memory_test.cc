// Collectives through the memory of the host: operands in place, failures, and the way back to Gloo.
#include "exec/memory/shared_memory.h"

#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "exec/comm/reduce.h"
#include "exec/comm/shared/over_hosts.h"
#include "exec/comm/shared/peer.h"
#include "exec/comm/threads.h"
#include "exec/device.h"
#include "exec/memory/allocator.h"
#include "exec/memory/arena.h"
#include "tests/exec/processes.h"
#include "tests/support/torch_test.h"

namespace perigee::exec {
namespace {

using mesh::Reduce;
using namespace std::chrono_literals;

// Returns numbers whose sum depends on the order of its terms.
at::Tensor operand_of(int64_t rank, int64_t elements, at::ScalarType type) {
  at::manual_seed(static_cast<uint64_t>(rank) + 1);
  return (at::randn({elements}, at::kDouble) * 50).to(type);
}

// Returns the number of mapped segments of this process and its peers.
int64_t mapped_segments() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += line.find("/memfd:perigee") != std::string::npos;
  }
  return count;
}

// The program's group with all ranks.
std::shared_ptr<Group> everyone(Communicator& c) { return c.group("data", range(c.world())); }

TEST_CASE("sums of every element type through shared memory are bit-equal in the group's order") {
  check_no_errors(fork_ranks(3, [](Communicator& c) {
    const auto group = everyone(c);
    for (auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                      at::kShort, at::kChar, at::kByte, at::kBool}) {
      for (auto reduce : {Reduce::sum, Reduce::average, Reduce::max, Reduce::min}) {
        for (const int64_t elements : {1, 1000, 100'000}) {
          std::vector<at::Tensor> all;
          for (int64_t r = 0; r < 3; ++r) all.push_back(operand_of(r, elements, type));
          const auto expected = at::empty_like(all[0]), out = at::empty_like(all[0]);
          reduce_elements(all, std::span(&expected, 1), reduce, 0, elements);
          group->run({.kind = Collective::Kind::all_reduce,
                      .input = all[c.rank()],
                      .output = out,
                      .reduce = reduce});
          must(std::memcmp(out.data_ptr(), expected.data_ptr(), out.nbytes()) == 0, "sum");
        }
      }
    }
    auto small = at::zeros({64}, at::kFloat8_e4m3fn), moved = at::ones({64}, at::kByte);
    moved = moved.view(at::kFloat8_e4m3fn);
    group
        ->start_flat(
            {.kind = Collective::Kind::broadcast, .input = small, .output = moved, .peer = 2})
        ->wait();
    must(moved.view(at::kByte).sum().item<int64_t>() == 0, "eight-bit floats");
  }));
}

TEST_CASE("parts of any sizes go through shared memory, empty ones among them") {
  check_no_errors(fork_ranks(3, [](Communicator& c) {
    const auto group = everyone(c);
    const auto me = c.rank();
    const std::vector<int64_t> counts = {0, 200'000, 3};
    const auto begin = std::vector<int64_t>{0, 0, 200'000};
    const auto whole = at::arange(200'003, at::kFloat);
    const auto part = whole.narrow(0, begin[me], counts[me]).clone();
    auto gathered = at::zeros({200'003});
    group
        ->start_flat({.kind = Collective::Kind::all_gather,
                      .input = part,
                      .output = gathered,
                      .output_counts = counts})
        ->wait();
    must(at::equal(gathered, whole), "all_gather");
    auto scattered = at::zeros({counts[me]});
    group
        ->start_flat({.kind = Collective::Kind::reduce_scatter,
                      .input = whole * (me + 1),
                      .output = scattered,
                      .input_counts = counts})
        ->wait();
    must(at::equal(scattered, part * 6), "reduce_scatter");
    // Rank i sends i + j elements with the value 10 * i + j to rank j.
    std::vector<int64_t> sent, received;
    std::vector<at::Tensor> inputs, outputs;
    for (int64_t other = 0; other < 3; ++other) {
      sent.push_back(me + other);
      received.push_back(other + me);
      inputs.push_back(at::full({me + other}, static_cast<double>(10 * me + other)));
      outputs.push_back(at::full({other + me}, static_cast<double>(10 * other + me)));
    }
    auto exchanged = at::zeros({3 + 3 * me});
    group
        ->start_flat({.kind = Collective::Kind::all_to_all,
                      .input = at::cat(inputs),
                      .output = exchanged,
                      .input_counts = sent,
                      .output_counts = received})
        ->wait();
    must(at::equal(exchanged, at::cat(outputs)), "all_to_all");
  }));
}

TEST_CASE("frames of collectives lie in shared memory and are read where they are") {
  const auto memory = SharedMemory::open();
  const auto device = cpu_device(memory);
  using Frame = compile::Frame;
  const Arena arena({{Frame::Kind::persistent, "p", 1000}, {Frame::Kind::communication, "c", 500}},
                    *device);
  const auto bases = arena.bases();
  CHECK_FALSE(memory->find(bases[0], 1000));
  CHECK(memory->find(bases[1], 500));
  const Arena marked({{Frame::Kind::persistent, "p", 1000}}, *device, {true});
  CHECK(memory->find(marked.bases()[0], 1000));
  // The same bytes are counted as in private memory.
  const auto before = memory_count().arenas;
  {
    const auto frames = allocate_frames(1 << 20, memory.get());
    CHECK(memory_count().arenas - before == 1 << 20);
    CHECK(std::all_of(frames.get(), frames.get() + (1 << 20),
                      [](std::byte b) { return b == std::byte{0}; }));
  }
  CHECK(memory_count().arenas == before);
}

TEST_CASE("memory that a rank has freed ends in its peers, too") {
  check_no_errors(fork_ranks(2, [](Communicator& c) {
    const auto group = everyone(c);
    int64_t mapped = 0;
    for (int round = 0; round < 100; ++round) {
      // Larger operands than those that are kept.
      auto x = at::full({20'000 + 40'000 * (round % 2)}, static_cast<double>(c.rank() + round));
      group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
      must(x.eq(2 * round + 1).all().item<bool>(), "sum");
      if (round == 4) mapped = mapped_segments();
    }
    // A peer notices a few rounds later that a segment has been freed.
    constexpr int64_t kLate = 8;
    must(mapped > 0 && mapped_segments() <= mapped + kLate, "segments do not grow");
  }));
  const auto memory = SharedMemory::open();
  PeerMemory peer(address_of(*memory));  // this process, as another one sees it
  const auto address = [&](int value) {
    auto segment = memory->allocate(1 << 20);
    segment.get()[7] = static_cast<std::byte>(value);
    return segment;
  };
  auto first = address(1);
  const auto before = mapped_segments();
  for (int value = 1; value < 200; ++value) {
    const auto place = *memory->find(first.get() + 7, 1);
    const auto mapping = peer.at(place);
    REQUIRE(mapping->begin[place.offset] == static_cast<std::byte>(value % 256));
    first = address((value + 1) % 256);
  }
  CHECK(mapped_segments() <= before + 3);
}

TEST_CASE("a rank may free its operands after a collective that a late rank has not looked at") {
  std::shared_ptr<SharedMemory> memory;
  const auto body = [&](Communicator& c) {
    const auto group = everyone(c);
    constexpr int64_t n = 1 << 20;
    for (int round = 0; round < 300; ++round) {
      const auto segment = memory->allocate(n * 4);
      auto x = at::from_blob(segment.get(), {n}, at::kFloat).fill_(c.rank() + round);
      group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
      must(x[n - 1].item<float>() == 2 * round + 1, "sum");
    }
  };
  check_no_errors(fork_ranks(2, body, 20s, Carrier::shared, nullptr, &memory));
}

TEST_CASE("a killed rank is named by the others long before the time-out") {
  for (const int64_t victim : {0, 1, 2}) {
    const auto errors = fork_ranks(
        3,
        [victim](Communicator& c) {
          const auto group = everyone(c);
          auto x = at::ones({10});
          group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
          if (c.rank() == victim) ::raise(SIGKILL);
          group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
        },
        40s);  // a rank that waits as long is ended by its alarm, or says something else
    for (int64_t rank = 0; rank < 3; ++rank) {
      INFO(rank << ": " << errors[rank]);
      if (rank == victim) {
        CHECK(errors[rank] == "ended by a signal");
      } else {
        CHECK_THAT(errors[rank],
                   Catch::Contains("all_reduce over data (ranks 0,1,2)") &&
                       Catch::Contains("rank " + std::to_string(victim) + " does not answer"));
      }
    }
  }
}

// Every rank writes its part of the memory that all hold, and reads all parts.
void hold_one_memory(Communicator& c) {
  const auto group = everyone(c);
  const int64_t ranks = c.world(), part = 16'000, bytes = ranks * part * 4;
  const auto all = at::arange(ranks, at::kFloat).repeat_interleave(part);
  group->run({.kind = Collective::Kind::barrier});
  auto memory = group->one_memory(bytes);
  auto x = at::from_blob(memory.get(), {ranks * part}, at::kFloat);
  must(reinterpret_cast<uintptr_t>(memory.get()) % 64 == 0, "alignment");
  must(x.sum().item<float>() == 0, "zeros");
  group->run({.kind = Collective::Kind::barrier});
  x.narrow(0, c.rank() * part, part).fill_(c.rank());
  group->run({.kind = Collective::Kind::barrier});
  must(at::equal(x, all), "parts of all ranks");
}

TEST_CASE("ranks hold one memory, of which each counts its share") {
  for (const int64_t ranks : {2, 3}) {
    check_no_errors(fork_ranks(ranks, [](Communicator& c) {
      const auto before = memory_count().arenas;
      hold_one_memory(c);
      must(memory_count().arenas == before, "freed");
      const auto memory = everyone(c)->one_memory(c.world() * 4096);
      must(memory_count().arenas == before + 4096, "share");
      must(library_bytes() >= 0, "libraries");
    }));
    const auto before = memory_count().arenas;
    run_ranks(ranks, [](Communicator& c) { hold_one_memory(c); });
    CHECK(memory_count().arenas == before);
    // Threads add up to the whole.
    run_ranks(ranks, [&](Communicator& c) {
      const auto memory = everyone(c)->one_memory(c.world() * 4096);
      everyone(c)->run({.kind = Collective::Kind::barrier});
      must(memory_count().arenas == before + c.world() * 4096, "shares");
      everyone(c)->run({.kind = Collective::Kind::barrier});
    });
  }
  check_no_errors(fork_ranks(
      2, [](Communicator& c) { must(!everyone(c)->one_memory(8192), "memory over Gloo"); }, 20s,
      Carrier::gloo));
}

TEST_CASE("one memory outlives the rank that made it in the others, which name the lost rank") {
  const auto errors = fork_ranks(
      3,
      [](Communicator& c) {
        const auto group = everyone(c);
        const auto memory = group->one_memory(3 * 4096);
        memory.get()[c.rank()] = std::byte{7};
        group->run({.kind = Collective::Kind::barrier});
        if (c.rank() == 0) ::raise(SIGKILL);
        try {
          group->run({.kind = Collective::Kind::barrier});
        } catch (const std::exception&) {
          for (int i = 0; i < 3; ++i) must(memory.get()[i] == std::byte{7}, "what it wrote");
          throw;
        }
      },
      40s);
  CHECK(errors[0] == "ended by a signal");
  for (const int64_t rank : {1, 2}) CHECK_THAT(errors[rank], Catch::Contains("rank 0 does not"));
}

TEST_CASE("a rank that fails, ends early or stops is named by those that share its memory") {
  const auto failing = fork_ranks(
      2,
      [](Communicator& c) {
        const auto group = everyone(c);
        if (c.rank() == 1) throw std::runtime_error("the disk is full");
        group->run({.kind = Collective::Kind::barrier});
      },
      40s);
  CHECK_THAT(failing[0], Catch::Contains("rank 0: barrier over data (ranks 0,1)") &&
                             Catch::Contains("rank 1 failed: the disk is full"));
  const auto silent = fork_ranks(
      2,
      [](Communicator& c) {
        const auto group = everyone(c);
        if (c.rank() == 1) usleep(2500000);
        group->run({.kind = Collective::Kind::barrier});
      },
      1s);
  CHECK_THAT(silent[0], Catch::Contains("within 1 s (cluster.timeout)") &&
                            Catch::Contains("rank 1 does not answer"));
}

TEST_CASE("ranks that start different collectives share the error that names both") {
  const auto sizes = fork_ranks(2, [](Communicator& c) {
    auto x = at::ones({c.rank() == 0 ? 10 : 11});
    everyone(c)->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
  });
  for (const auto& error : sizes) {
    CHECK_THAT(error, Catch::Contains("same collective") &&
                          Catch::Contains("all_reduce of 10 Float and all_reduce of 11 Float"));
  }
  const auto parts = fork_ranks(2, [](Communicator& c) {
    auto x = at::ones({4}), out = at::ones({6});
    const std::vector<int64_t> counts = c.rank() == 0 ? std::vector<int64_t>{4, 2}
                                                      : std::vector<int64_t>{2, 4};
    everyone(c)
        ->start_flat({.kind = Collective::Kind::all_gather,
                      .input = x,
                      .output = out,
                      .output_counts = counts})
        ->wait();
  });
  CHECK_THAT(parts[0], Catch::Contains("same collective") && Catch::Contains("expects"));
}

// Limits files' sizes, so that rank 1 gets no more shared memory.
void limit_rank_1(int64_t rank) {
  const rlimit none{100, 100};
  std::signal(SIGXFSZ, SIG_IGN);
  if (rank == 1) must(setrlimit(RLIMIT_FSIZE, &none) == 0, "limit");
}

TEST_CASE("ranks that cannot share memory use Gloo, or say why they fail") {
  const auto sum = [](Communicator& c) {
    auto x = at::full({1000}, static_cast<double>(c.rank()));
    everyone(c)->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
    must(x.eq(1).all().item<bool>(), "sum");
  };
  check_no_errors(fork_ranks(2, sum, 20s, Carrier::automatic, limit_rank_1));
  for (const auto& error : fork_ranks(2, sum, 20s, Carrier::shared, limit_rank_1)) {
    CHECK_THAT(error, Catch::Contains("cluster.communicator") && Catch::Contains("use \"auto\"") &&
                          Catch::Contains("ulimit -f"));
  }
}

// Returns the sum of the ranks' operands: of each host's in the group's order, then of the hosts'.
at::Tensor sum_over_hosts(const std::string& hosts, const std::vector<at::Tensor>& all) {
  const auto add = [](const std::vector<at::Tensor>& terms) {
    auto sum = at::empty_like(terms[0]);
    reduce_elements(terms, std::span(&sum, 1), Reduce::sum, 0, sum.numel());
    return sum;
  };
  std::map<char, std::vector<at::Tensor>> members;
  for (size_t r = 0; r < hosts.size(); ++r) members[hosts[r]].push_back(all[r]);
  std::vector<at::Tensor> sums;
  for (const auto& [host, terms] : members) sums.push_back(add(terms));
  return add(sums);
}

TEST_CASE("sums over hosts are bit-equal on all ranks, each host's first and then the hosts'") {
  const auto hosts = std::string(GENERATE("AABB", "AAAB", "ABBA", "ABCAB"));
  check_no_errors(fork_over_hosts(hosts, [&](Communicator& c) {
    const auto group = everyone(c);
    const int64_t n = c.world(), me = c.rank();
    for (auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const int64_t part : {1, 999, 100'000}) {
        std::vector<at::Tensor> all;
        for (int64_t r = 0; r < n; ++r) all.push_back(operand_of(r, n * part, type));
        const auto expected = sum_over_hosts(hosts, all);
        auto out = at::empty_like(expected), other = at::empty_like(expected);
        auto scattered = at::empty({part}, out.options());
        group->run({.input = all[me], .output = out});
        // Gloo adds up three hosts in an order of its own.
        if (hosts != "ABCAB") must(at::equal(out, expected), "all_reduce");
        group->run({.input = all[me], .output = other});
        must(at::equal(out, other), "another all_reduce");
        group->run({.kind = Collective::Kind::broadcast, .input = out, .output = other});
        must(at::equal(out, other), "all_reduce of rank 0");
        group->run(
            {.kind = Collective::Kind::reduce_scatter, .input = all[me], .output = scattered});
        must(at::equal(scattered, expected.narrow(0, me * part, part)), "reduce_scatter");
      }
    }
  }));
}

TEST_CASE("a killed or silent rank is named on its own host and ends the waits of other hosts") {
  for (const auto& [victim, dies] : {std::pair{1, true}, {3, true}, {3, false}}) {
    const auto errors = fork_over_hosts(
        "AABB",
        [&](Communicator& c) {
          const auto group = everyone(c);
          auto x = at::ones({10});
          group->run({.input = x, .output = x});
          if (c.rank() == victim) dies ? ::raise(SIGKILL) : usleep(4000000);
          group->run({.input = x, .output = x});
        },
        dies ? 40s : 1s);
    for (int64_t rank = 0; rank < 4; ++rank) {
      if (rank == victim) {
        CHECK((errors[rank] == "ended by a signal") == dies);
      } else {
        CHECK_THAT(errors[rank],
                   Catch::Contains("over data (ranks 0,1,2,3)") &&
                       Catch::Contains("rank " + std::to_string(victim) + " does not"));
      }
    }
  }
}

TEST_CASE("a group over hosts is Gloo's where no host, or not every one, has shared memory") {
  const auto sum = [](Communicator& c) {
    auto x = at::full({1000}, static_cast<double>(c.rank()));
    const auto group = everyone(c);
    must(!dynamic_cast<GroupOverHosts*>(group.get()), "a group of Gloo");
    group->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
    must(x.eq(c.world() * (c.world() - 1) / 2).all().item<bool>(), "sum");
  };
  check_no_errors(fork_over_hosts("AB", sum));
  check_no_errors(fork_over_hosts("AABB", sum, 20s, limit_rank_1));
  check_no_errors(fork_over_hosts("BAAB", [&](Communicator& c) {
    limit_rank_1(c.rank());  // after it has joined: a host's group gets no memory
    sum(c);
  }));
  for (const auto& error : fork_ranks(3, sum, 20s, Carrier::shared, nullptr, nullptr, "AAB")) {
    CHECK_THAT(error, Catch::Contains("ranks 0 and 2 are on different hosts"));
  }
}

TEST_CASE("a process is a peer on this host only if its memory holds the job's number") {
  const auto memory = SharedMemory::open();
  const auto address = address_of(*memory);
  CHECK(PeerMemory(*ProcessAddress::parse(address.print())).runs());
  auto other = address;
  other.nonce = "another host's number";
  CHECK_THROWS_WITH(PeerMemory(other), Catch::Contains("must be a rank of this job"));
  other = address;
  other.board.inode += 1;
  CHECK_THROWS_WITH(PeerMemory(other), Catch::Contains("another segment"));
  other = address;
  other.board.descriptor = 0;  // a file that is none of ours is not even opened
  CHECK_THROWS_WITH(PeerMemory(other), Catch::Contains("must be mapped"));
  CHECK_FALSE(ProcessAddress::parse("GET / HTTP/1.1"));
}

TEST_CASE("a killed job leaves nothing in the system's shared memory") {
  const auto listed = [] {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      names.insert(entry.path());
    }
    return names;
  };
  const auto before = listed();
  const auto errors = fork_ranks(2, [](Communicator& c) {
    auto x = at::ones({100'000});
    everyone(c)->run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
    ::raise(SIGKILL);
  });
  CHECK(errors == std::vector<std::string>(2, "ended by a signal"));
  for (const auto& name : listed()) {
    INFO(name);
    CHECK((before.contains(name) || name.find("perigee") == std::string::npos));
  }
}

}  // namespace
}  // namespace perigee::exec
