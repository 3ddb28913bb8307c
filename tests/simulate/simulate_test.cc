#include "simulate/simulate.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "simulate/report.h"

using namespace perigee;
using compile::Instruction;
using compile::Program;
using graph::DType;

namespace {

// An op takes the seconds in its name; collectives move a byte a second at level 0.
class TimesByName : public cost::Measurements {
 public:
  std::optional<double> op(const std::string& instance) override {
    return std::stod(instance.substr(instance.find('.') + 1));
  }
  std::optional<double> collective(const cost::Cluster&, cost::CollectiveKind, double,
                                   const std::vector<int64_t>&) override {
    return std::nullopt;
  }
};

cost::Cluster cluster(int64_t ranks) {
  cost::DeviceSpec device{.name = "d", .count = ranks, .memory = 1e9, .bandwidth = 1e9};
  device.peak = {{DType::float32, 1e9}};
  device.vector = 1e9;
  return {"test", {device}, {{"node", ranks, 0, 1, ""}}};
}

Instruction op(const std::string& seconds) {
  return {.op = "test::op." + seconds, .in_place = true};
}

struct ProgramBuilder {
  Program program;

  explicit ProgramBuilder(std::vector<std::string> streams, int64_t rank = 0) {
    program.rank = rank;
    program.streams = {compile::Stream::compute()};
    for (const auto& name : streams) program.streams.push_back(compile::Stream::parse(name));
    program.sections.push_back({.role = {.kind = compile::SectionKind::micro}});
    program.order = {{0, 0, 0}};
  }
  void add(Instruction instruction) {
    program.sections.back().instructions.push_back(std::move(instruction));
  }
  // Starts an all-reduce or a message of `bytes` bytes.
  int32_t start(int32_t stream, int64_t bytes, const std::string& name = "comm::all_reduce") {
    program.values.push_back({.type = {DType::uint8, {bytes}}, .strides = {1}});
    const graph::ValueId v{static_cast<int32_t>(program.values.size()) - 1};
    Instruction instruction{.kind = Instruction::Kind::collective, .op = name};
    if (name != "comm::receive") instruction.args = {{"self", v}};
    instruction.outputs = {v};
    instruction.stream = stream;
    instruction.event = program.events++;
    add(instruction);
    return instruction.event;
  }
  void wait(int32_t event) { add({.kind = Instruction::Kind::wait, .event = event}); }
};

simulate::Simulation run_on(const cost::Cluster& description, const std::vector<Program>& programs,
                            const mesh::Mesh& mesh, std::vector<int32_t> program,
                            bool intervals = false) {
  compile::Programs all{.programs = programs, .ranks = {}, .program = std::move(program)};
  for (int64_t r = 0; r < mesh.size(); ++r) all.ranks.push_back(r);
  TimesByName given;
  simulate::OpCosts costs(description, given);
  auto plain = simulate::simulate(all, mesh, costs, {});
  const auto full = simulate::simulate(all, mesh, costs, {.intervals = true});
  // Simulation with and without intervals gives the same times.
  CHECK(plain.step_seconds == Approx(full.step_seconds));
  for (size_t r = 0; r < plain.ranks.size(); ++r) {
    CHECK(plain.ranks[r].compute == Approx(full.ranks[r].compute));
    for (size_t s = 0; s < plain.ranks[r].streams.size(); ++s) {
      CHECK(plain.ranks[r].streams[s] == Approx(full.ranks[r].streams[s]));
    }
  }
  return intervals ? full : plain;
}

simulate::Simulation run(const std::vector<Program>& programs, const mesh::Mesh& mesh,
                         std::vector<int32_t> program, bool intervals = false,
                         bool shared_cores = false) {
  auto description = cluster(mesh.size());
  description.shared_cores = shared_cores;
  return run_on(description, programs, mesh, std::move(program), intervals);
}

}  // namespace

TEST_CASE("ops run one after the other, once for each run of their section") {
  ProgramBuilder m({});
  m.add(op("2"));
  m.add(op("3"));
  m.program.sections.push_back({.role = {.kind = compile::SectionKind::step}});
  m.add(op("1"));
  m.program.order = {{0, 0, 0}, {0, 1, 0}, {0, 2, 0}, {1, 0, 0}};
  const auto result = run({m.program}, {{{"data", 1}}}, {0});
  CHECK(result.step_seconds == Approx(3 * 5 + 1));
  CHECK(result.bubble_ratio == Approx(0).margin(1e-12));
  CHECK(result.measured_share == Approx(1));
}

TEST_CASE("an average of every k-th step has 1/k of its time") {
  ProgramBuilder m({"data"});
  m.add(op("0.1"));
  m.program.sections.push_back({.role = {.kind = compile::SectionKind::average, .period = 100}});
  m.wait(m.start(1, 1));
  m.add(op("2"));
  m.program.order = {{0, 0, 0}, {.section = 1, .every = 100}};
  const auto result = run({m.program}, {{{"data", 2}}}, {0, 0});
  CHECK(result.step_seconds == Approx(0.1 + 0.01 + 0.02));
  CHECK(result.ranks[0].compute == Approx(0.1 + 0.02));
  CHECK(result.ranks[0].streams[1] == Approx(0.01));
  CHECK(result.measured_share == Approx(0.12 / 0.13));
}

TEST_CASE("ops before a collective's wait hide it") {
  // All-reduce of 4 bytes over 2 ranks: 2 * 4 / 2 = 4 seconds.
  ProgramBuilder m({"data"});
  m.add(op("1"));
  const auto event = m.start(1, 4);
  m.add(op("3"));
  m.wait(event);
  m.add(op("1"));
  const auto result = run({m.program}, {{{"data", 2}}}, {0, 0});
  REQUIRE(result.ranks.size() == 1);
  CHECK(result.ranks[0].replicas == 2);
  CHECK(result.step_seconds == Approx(1 + 4 + 1));
  CHECK(result.ranks[0].compute == Approx(5));
  CHECK(result.ranks[0].waiting == Approx(1));
  CHECK(result.ranks[0].streams[1] == Approx(4));
  CHECK(result.bubble_ratio == Approx(1.0 / 6));
}

TEST_CASE("ops beside a collective on the same cores end later by its time") {
  // Seconds of the ops before, beside and after the all-reduce, which takes 4.
  const auto seconds = [](const std::string& beside, bool wait_twice) {
    ProgramBuilder m({"data"});
    m.add(op("1"));
    const auto event = m.start(1, 4);
    m.add(op(beside));
    m.wait(event);
    if (wait_twice) m.wait(event);
    m.add(op("1"));
    ProgramBuilder other = m;
    other.program.rank = 1;
    const auto together = run({m.program}, {{{"data", 2}}}, {0, 0}, false, true),
               apart = run({m.program, other.program}, {{{"data", 2}}}, {0, 1}, false, true);
    CHECK(together.step_seconds == Approx(apart.step_seconds));
    return together.step_seconds;
  };
  CHECK(seconds("0", false) == Approx(1 + 4 + 1));
  CHECK(seconds("3", false) == Approx(1 + 3 + 4 + 1));
  CHECK(seconds("9", false) == Approx(1 + 9 + 4 + 1));
  CHECK(seconds("9", true) == Approx(1 + 9 + 4 + 1));
}

TEST_CASE("two collectives at once on the cores of ops hold these up by the times of both") {
  // All-reduces of 4 seconds each on two streams, which share the link, beside an op.
  ProgramBuilder m({"data", "tensor"});
  const auto first = m.start(1, 4), second = m.start(2, 4);
  m.add(op("20"));
  m.wait(first);
  m.wait(second);
  const auto result = run({m.program}, {{{"data", 2}, {"tensor", 2}}}, {0, 0, 0, 0}, false, true);
  CHECK(result.step_seconds == Approx(20 + 4 + 4));
}

TEST_CASE("a collective begins when its last rank has started it") {
  ProgramBuilder fast({"data"}), slow({"data"}, 1);
  for (auto* m : {&fast, &slow}) {
    m->add(op(m == &fast ? "1" : "7"));
    m->wait(m->start(1, 4));
  }
  const auto result = run({fast.program, slow.program}, {{{"data", 2}}}, {0, 1});
  CHECK(result.step_seconds == Approx(11));
  CHECK(result.ranks[0].waiting == Approx(10));
  CHECK(result.ranks[1].waiting == Approx(4));
}

TEST_CASE("collectives of one stream run in sequence, those of two streams share their link") {
  ProgramBuilder one({"data"});
  const auto a = one.start(1, 4), b = one.start(1, 4);
  one.wait(a);
  one.wait(b);
  CHECK(run({one.program}, {{{"data", 2}}}, {0, 0}).step_seconds == Approx(8));
  // Alone they take 4 and 2 seconds. Both run at half speed until the short one ends at 4 s; 2 s of
  // the long one remain.
  ProgramBuilder two({"data", "tensor"});
  const auto c = two.start(1, 4), d = two.start(2, 2);
  two.wait(c);
  two.wait(d);
  const auto result = run({two.program}, {{{"data", 2}, {"tensor", 2}}}, {0, 0, 0, 0});
  CHECK(result.step_seconds == Approx(6));
  CHECK(result.ranks[0].streams[1] == Approx(6));
  CHECK(result.ranks[0].streams[2] == Approx(4));
}

TEST_CASE("a collective beside an earlier transfer shares the link with it, or starts after it") {
  // Returns the seconds of a step in which a transfer of 10 seconds on stream 1 is under way when
  // one of 2 seconds starts; the former is waited for in the same section or in a later one.
  const auto seconds = [](int32_t stream, bool waits_later) {
    ProgramBuilder m({"data", "tensor"});
    const auto first = m.start(1, 10);
    m.add(op("1"));
    m.wait(m.start(stream, 2));
    if (waits_later) {
      m.program.sections.push_back({.role = {.kind = compile::SectionKind::step}});
      m.program.order = {{0, 0, 0}, {1, 0, 0}};
    }
    m.wait(first);
    return run({m.program}, {{{"data", 2}, {"tensor", 2}}}, {0, 0, 0, 0}).step_seconds;
  };
  for (const bool waits_later : {false, true}) {
    // Both run at half speed from 1 s to 5 s; 7 s of the first remain.
    CHECK(seconds(2, waits_later) == Approx(12));
    CHECK(seconds(1, waits_later) == Approx(10 + 2));
  }
}

TEST_CASE("the collectives of a section that begins with a wait count once") {
  // "data" is within nodes, "tensor" between them.
  ProgramBuilder m({"data", "tensor"});
  const auto between = m.start(2, 10);
  m.program.sections.push_back({.role = {.kind = compile::SectionKind::step}});
  m.program.order = {{0, 0, 0}, {1, 0, 0}};
  m.wait(between);
  m.wait(m.start(1, 2));
  auto nodes = cluster(4);
  nodes.links = {{"node", 2, 0, 1, ""}, {"net", 4, 0, 1, ""}};
  const auto result = run_on(nodes, {m.program}, {{{"data", 2}, {"tensor", 2}}}, {0, 0, 0, 0});
  CHECK(result.step_seconds == Approx(12));
  CHECK(result.ranks[0].streams[1] == Approx(2));
  CHECK(result.ranks[0].streams[2] == Approx(10));
}

TEST_CASE("stages wait for each other's messages, which gives the bubble") {
  ProgramBuilder first({"pipe:0>1"}), second({"pipe:0>1"}, 1);
  first.add(op("5"));
  first.wait(first.start(1, 2, "comm::send"));
  second.wait(second.start(1, 2, "comm::receive"));
  second.add(op("5"));
  first.program.order = second.program.order = {{0, 0, 0}, {0, 1, 0}};
  const auto result = run({first.program, second.program}, {{{"pipe", 2}}}, {0, 1});
  // 5 + 2 | 5 ... the second message leaves at 12 and arrives at 14.
  CHECK(result.step_seconds == Approx(19));
  CHECK(result.bubble_ratio == Approx(1 - 20.0 / 38));
}

TEST_CASE("a step ends with its slowest rank, whichever it is") {
  ProgramBuilder fast({}), slow({}, 1);
  fast.add(op("2"));
  slow.add(op("5"));
  const mesh::Mesh mesh{{{"data", 3}}};
  for (const auto& order : {std::vector{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}) {
    CHECK(run({fast.program, slow.program}, mesh, order).step_seconds == 5);
  }
}

TEST_CASE(
    "ranks with one program are distinguished if they communicate with ranks of different "
    "programs") {
  // Two pipelines with different first stages and identical second stages.
  ProgramBuilder fast({"pipe:0>1"}), slow({"pipe:0>1"}, 1), second({"pipe:0>1"}, 2);
  fast.add(op("1"));
  fast.wait(fast.start(1, 2, "comm::send"));
  slow.add(op("4"));
  slow.wait(slow.start(1, 2, "comm::send"));
  second.wait(second.start(1, 2, "comm::receive"));
  second.add(op("3"));
  const auto result = run({fast.program, slow.program, second.program},
                          {{{"data", 2}, {"pipe", 2}}}, {0, 1, 2, 2});
  REQUIRE(result.ranks.size() == 4);
  CHECK(result.ranks[2].end == Approx(1 + 2 + 3));
  CHECK(result.ranks[3].end == Approx(4 + 2 + 3));
}

TEST_CASE("programs that deadlock are an error that names a rank and its section") {
  ProgramBuilder first({"pipe:0>1", "pipe:1>0"}), second({"pipe:0>1", "pipe:1>0"}, 1);
  first.wait(first.start(2, 1, "comm::receive"));
  first.wait(first.start(1, 1, "comm::send"));
  second.wait(second.start(1, 1, "comm::receive"));
  second.wait(second.start(2, 1, "comm::send"));
  compile::Programs all{
      .programs = {first.program, second.program}, .ranks = {0, 1}, .program = {0, 1}};
  TimesByName given;
  const auto description = cluster(2);
  simulate::OpCosts costs(description, given);
  CHECK_THROWS_WITH(simulate::simulate(all, {{{"pipe", 2}}}, costs),
                    Catch::Contains("the programs deadlock: rank 0 waits in section micro"));
}

TEST_CASE("one rank that represents many has the time of their slowest group") {
  // Groups of 3 on nodes of 8: the first lies within a node, the third spans two.
  ProgramBuilder m({"tensor"});
  m.wait(m.start(1, 6));
  const mesh::Mesh mesh{{{"tensor", 3}, {"data", 8}}};
  compile::Programs all{.programs = {m.program}, .ranks = {}, .program = {}};
  for (int64_t r = 0; r < 24; ++r) all.ranks.push_back(r);
  all.program.resize(24);
  TimesByName given;
  auto on = cluster(24);
  on.links = {{"node", 8, 0, 100, ""}, {"net", 24, 0, 1, ""}};
  simulate::OpCosts costs(on, given);
  const auto each = simulate::simulate(all, mesh, costs, {});
  const auto one = simulate::simulate(all, mesh, costs, {.most_ranks = 4});
  CHECK(one.ranks.size() == 1);
  CHECK(one.step_seconds == Approx(each.step_seconds));
  on.links.back().bandwidth = 100;
  CHECK(one.step_seconds > 10 * simulate::simulate(all, mesh, costs, {}).step_seconds);
}

TEST_CASE("the text sums streams of a kind, and the JSON has each") {
  ProgramBuilder m({"pipe:0>1/0>1", "tensor", "pipe:1>0/1>2", "pipe:0>1/24>25"});
  const compile::Programs programs{.programs = {m.program}, .ranks = {0}, .program = {0}};
  simulate::Simulation simulation;
  simulation.step_seconds = 2;
  simulate::RankTime rank{.replicas = 64, .compute = 1.5, .waiting = 0.5};
  rank.streams = {1.5, 0.1, 0.25, 0.02, 0.003};
  simulation.ranks = {rank};
  const auto text = simulate::to_text(simulation, programs, cluster(1), {});
  CHECK_THAT(text,
             Catch::Contains("rank 0 and 63 equivalent: computes 1.5 s, waits 500 ms; streams: "
                             "tensor 250 ms, pipe 123 ms; 0 B"));
  const auto json = simulate::to_json(simulation, programs, cluster(1), {});
  CHECK_THAT(json, Catch::Contains("\"pipe:0>1/24>25\": 0.003"));
}

TEST_CASE("the trace has an event for every op and collective of every program") {
  ProgramBuilder m({"data"});
  m.add(op("1"));
  m.wait(m.start(1, 4));
  compile::Programs all{.programs = {m.program}, .ranks = {0, 1}, .program = {0, 0}};
  TimesByName given;
  const auto description = cluster(2);
  simulate::OpCosts costs(description, given);
  const auto simulation = simulate::simulate(all, {{{"data", 2}}}, costs, {.intervals = true});
  const auto trace = simulate::chrome_trace(simulation, all);
  CHECK(trace.find(R"("name":"test::op.1","pid":0,"tid":0,"ts":0.000,"dur":1000000.000)") !=
        std::string::npos);
  CHECK(trace.find(R"("name":"comm::all_reduce","pid":0,"tid":1,"ts":1000000.000,"dur":4000000)") !=
        std::string::npos);
}
