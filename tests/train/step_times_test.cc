#include "train/measure/step_times.h"

#include <catch2/catch.hpp>

namespace perigee::train {
namespace {

using compile::Instruction;
using compile::Interval;
using graph::ValueId;

const graph::TensorType kType = {graph::DType::float32, {64}};

Instruction add(int32_t value) {
  return {.op = "aten::add.Tensor",
          .args = {{"self", ValueId{value}}, {"other", ValueId{value}}},
          .outputs = {ValueId{value}}};
}

Instruction all_reduce(int32_t event) {
  return {.kind = Instruction::Kind::collective,
          .op = "comm::all_reduce",
          .args = {{"self", ValueId{0}}, {"axis", std::string("data")}},
          .outputs = {ValueId{0}},
          .stream = 1,
          .event = event};
}

// Each of two microbatches runs a load, an op, two all-reduces, the same op and another op.
compile::Program program_of() {
  compile::Program program;
  program.streams = {compile::Stream::compute(), compile::Stream::over("data")};
  program.values = {{.type = kType, .strides = {1}},
                    {.type = {graph::DType::float32, {32}}, .strides = {1}}};
  program.sections = {{.role = {.kind = compile::SectionKind::micro}},
                      {.role = {.kind = compile::SectionKind::average}}};
  program.sections[0].instructions = {
      {.kind = Instruction::Kind::load, .op = "x", .outputs = {ValueId{0}}},
      add(0),
      all_reduce(0),
      all_reduce(1),
      add(0),
      {.kind = Instruction::Kind::wait, .event = 0},
      {.kind = Instruction::Kind::wait, .event = 1},
      add(1)};
  program.sections[1].instructions = {add(0)};
  program.order = {{0, 0, 0}, {0, 1, 0}, {.section = 1, .every = 2}};
  return program;
}

Interval interval(int32_t stream, int64_t begin, int64_t end) {
  return {.stream = stream, .begin = begin, .end = end};
}

}  // namespace

TEST_CASE("a step has the time of each distinct op over all its places, and of each collective") {
  const auto program = program_of();
  const auto mesh = mesh::parse_axes("data=2");
  StepTimes times(program, mesh);
  for (const int64_t slow : {0, 9000, 0}) {  // one step of three is disturbed
    std::vector<Interval> intervals, waited;
    for (const int64_t begin : {0, 1000}) {
      intervals.push_back(interval(0, begin, begin + 5));
      intervals.push_back(interval(0, begin + 6, begin + 16));
      intervals.push_back(interval(0, begin + 17, begin + 47 + slow));
      intervals.push_back(interval(0, begin + 113 + slow, begin + 120 + slow));
      // The waits are recorded in the reverse order of execution.
      waited.push_back(interval(1, begin + 60 + slow, begin + 110 + slow));
      waited.push_back(interval(1, begin + 20, begin + 60 + slow));
    }
    intervals.insert(intervals.end(), waited.begin(), waited.end());
    times.add(intervals);
  }
  CHECK(times.steps() == 3);
  const auto key = [&](size_t i) {
    return compile::key(simulate::instance_of(program, program.sections[0].instructions[i]));
  };
  const auto ops = times.ops();
  REQUIRE(ops.size() == 2);
  // The op starts after the load (11 ns), and after the start of the all-reduces (30 ns).
  CHECK(ops.at(key(1)).seconds == Approx(0.5e-9 * (11 + 30)));
  CHECK(ops.at(key(1)).samples == 8);
  CHECK(ops.at(key(7)).seconds == Approx(7e-9));
  const auto exchanges = times.exchanges();
  REQUIRE(exchanges.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const auto& [exchange, time, places] = exchanges[i];
    CHECK(exchange.kind == cost::CollectiveKind::all_reduce);
    CHECK(exchange.ranks == std::vector<int64_t>{0, 1});
    CHECK(exchange.bytes == 256);
    CHECK(places == 1);
    // The compute stream waits for the second all-reduce: its time includes the 3 ns until the next
    // op starts.
    CHECK(time.seconds == Approx(i % 2 == 0 ? 40e-9 : 53e-9));
    CHECK(time.samples == 2);
  }
}

}  // namespace perigee::train
