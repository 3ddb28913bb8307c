#include "train/measure/join_times.h"

#include <catch2/catch.hpp>

namespace perigee::train {
namespace {

using compile::Instruction;
using compile::Interval;
using graph::ValueId;

// Two hosts of two ranks.
const cost::Cluster kHosts{.links = {{"host", 2, 1e-6, 1e9, ""}, {"network", 4, 1e-4, 1e8, ""}}};

constexpr int64_t kClockOffset = 1'000'000;  // nanoseconds by which rank 1's clock is ahead

// Returns a program of one op, an all-reduce over both ranks and two messages from rank 0 to
// rank 1.
compile::Program program_of(int64_t rank) {
  compile::Program program;
  program.rank = rank;
  for (const char* name : {"compute", "pipe", "pipe:0>1"}) {
    program.streams.push_back(compile::Stream::parse(name));
  }
  program.values = {{.type = {graph::DType::float32, {64}}, .strides = {1}}};
  program.sections = {{.role = {.kind = compile::SectionKind::micro}}};
  auto& list = program.sections[0].instructions;
  list.push_back({.op = "aten::neg", .args = {{"self", ValueId{0}}}, .outputs = {ValueId{0}}});
  list.push_back({.kind = Instruction::Kind::collective,
                  .op = "comm::all_reduce",
                  .args = {{"self", ValueId{0}}, {"axis", std::string("pipe")}},
                  .outputs = {ValueId{0}},
                  .stream = 1,
                  .event = 0});
  for (int32_t event : {1, 2}) {
    Instruction message{.kind = Instruction::Kind::collective, .stream = 2, .event = event};
    if (rank == 0) {
      message.op = "comm::send";
      message.args = {{"self", ValueId{0}}};
    } else {
      message.op = "comm::receive";
      message.outputs = {ValueId{0}};
    }
    list.push_back(message);
  }
  program.order = {{0, 0, 0}};
  return program;
}

Interval interval(int32_t stream, int64_t begin, int64_t end) {
  return {.stream = stream, .begin = begin, .end = end};
}

std::string print_steps(int64_t rank, std::vector<size_t>& typical) {
  const auto program = program_of(rank);
  StepTimes times(program, mesh::parse_axes("pipe=2"));
  std::vector<int64_t> together;
  const auto clock = rank * kClockOffset;
  for (int64_t step = 0; step < 4; ++step) {
    const auto at = clock + 10'000 * step;
    together.push_back(at + (step == 1 ? 50 * rank : 0));  // rank 1 leaves one barrier late
    // The ranks alternate in arriving last at the all-reduce.
    const auto late = step % 2 == rank ? 40 : 0;
    std::vector<Interval> intervals = {interval(0, at, at + 100 + 20 * rank)};
    intervals.push_back(interval(1, at + 200 + late, at + 300));
    if (rank == 0) {
      intervals.push_back(interval(2, at + 400, at + 900));
      intervals.push_back(interval(2, at + 410, at + 900));
    } else {
      intervals.push_back(interval(2, at + 450, at + 480));
      intervals.push_back(interval(2, at + 460, at + 500));
    }
    times.add(intervals);
  }
  typical = times.typical_steps();
  return print(times, together);
}

}  // namespace

TEST_CASE("exchange times are joined over ranks whose clocks differ") {
  std::vector<size_t> first, second;
  const std::vector<std::string> texts = {print_steps(0, first), print_steps(1, second)};
  REQUIRE(first == std::vector<size_t>{1, 2});
  const auto joined = join(texts, first, kHosts);
  REQUIRE(joined.ops.size() == 1);
  CHECK(joined.ops.begin()->second.seconds == Approx(110e-9));
  const auto& sums = joined.exchanges.at({cost::CollectiveKind::all_reduce, 2, "host", {}});
  REQUIRE(sums.count(256) == 1);
  // An all-reduce takes 60 ns from the arrival of the last rank, and each rank is last in half of
  // the steps: a rank spends (60 + 100) / 2 ns in it on average.
  CHECK(sums.at(256).seconds == Approx(80e-9));
  // The first message starts when its receiver is ready, the second when the first has ended.
  const auto& messages = joined.exchanges.at({cost::CollectiveKind::message, 2, "host", {}});
  REQUIRE(messages.count(256) == 1);
  CHECK(messages.at(256).seconds == Approx(1e-9 * (30 + 20) / 2));
}

TEST_CASE("times of collectives within hosts and between hosts are not averaged") {
  std::vector<std::string> texts;
  std::vector<size_t> typical;
  for (int64_t rank = 0; rank < 4; ++rank) {
    auto program = program_of(rank);
    program.streams[1] = compile::Stream::parse("tensor");
    program.streams[2] = compile::Stream::parse("data");
    auto& list = program.sections[0].instructions;
    list.resize(2);
    list.push_back(list[1]);
    list[2].stream = 2;
    StepTimes times(program, mesh::parse_axes("tensor=2,data=2"));
    for (int64_t step = 0; step < 4; ++step) {
      times.add({interval(0, 0, 100), interval(1, 200, 300), interval(2, 400, 1300)});
    }
    typical = times.typical_steps();
    texts.push_back(print(times, {0, 0, 0, 0}));
  }
  const auto exchanges = join(texts, typical, kHosts).exchanges;
  REQUIRE(exchanges.size() == 2);
  const auto seconds = [&](const cost::ExchangeKind& kind) {
    return exchanges.at(kind).at(256).seconds;
  };
  CHECK(seconds({cost::CollectiveKind::all_reduce, 2, "host", {}}) == Approx(100e-9));
  CHECK(seconds({cost::CollectiveKind::all_reduce, 2, "network", {1}}) == Approx(900e-9));
}

}  // namespace perigee::train
