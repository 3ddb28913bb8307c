// Programs of ranks that hold one copy of weights: memory, barriers, and the verifier's rules.
#include "compile/memory/one_copy.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"
#include "compile/draft/draft.h"
#include "simulate/memory_kinds.h"
#include "tests/compile/support.h"

using namespace perigee;
using namespace perigee::compile;
using Catch::Contains;

namespace {

constexpr int64_t kLayers = 3;

plan::Plan with_units(const graph::Graph& graph, int64_t ranks, int level, bool one_copy) {
  auto plan = data_parallel(graph, ranks, 2);
  for (int64_t k = 0; k < kLayers; ++k) {
    const auto scope = "layer." + std::to_string(k);
    plan.units.push_back({.name = scope,
                          .parameters = {scope + ".weight", scope + ".bias"},
                          .axes = "data",
                          .level = level,
                          .one_copy = one_copy});
  }
  return plan;
}

Program compiled(int64_t ranks, int level, bool one_copy, StepSpec spec = {.clip_norm = 1.0}) {
  const auto graph = mlp({.layers = kLayers, .batch = 24});
  const auto plan = with_units(graph, ranks, level, one_copy);
  plan::verify(plan, graph);
  CHECK(plan::parse(plan::print(plan)) == plan);
  SyntheticTraces traces;
  auto program = compile::compile(graph, plan, spec, 0, traces);
  verify(program);
  return program;
}

const Frame* frame_of_one_copy(const Program& program) {
  const auto found = std::ranges::find_if(program.frames,
                                          [](const Frame& frame) { return frame.held_by >= 0; });
  return found == program.frames.end() ? nullptr : &*found;
}

std::vector<Instruction>& step(Program& program) {
  for (auto& section : program.sections) {
    if (section.role.kind == SectionKind::step) return section.instructions;
  }
  throw std::logic_error("no step");
}

auto find(std::vector<Instruction>& list, const std::string& op) {
  return std::ranges::find_if(list, [&](const Instruction& i) { return i.op == op; });
}

}  // namespace

TEST_CASE("weights of one copy count once for all ranks, and a barrier replaces their gathers") {
  for (int level : {1, 2}) {
    for (int64_t ranks : {2, 3, 4}) {
      INFO("level " << level << ", " << ranks << " ranks");
      auto together = compiled(ranks, level, true), apart = compiled(ranks, level, false);
      const auto* frame = frame_of_one_copy(together);
      REQUIRE(frame);
      CHECK(!frame_of_one_copy(apart));
      CHECK(frame->holders == ranks);
      CHECK(frame->bytes % (64 * ranks) == 0);
      CHECK(frame->share() * ranks == frame->bytes);
      int64_t weights = 0;  // on one rank
      for (const auto& binding : together.bindings) {
        if (binding.kind != Binding::Kind::parameter) continue;
        CHECK(&together.frames[together.values[binding.value.index].place.frame] == frame);
        weights += together.values[binding.value.index].type.bytes();
      }
      CHECK(frame->bytes >= weights);
      // But for padding the difference is what the other ranks hold.
      const auto saved = apart.peak_bytes - together.peak_bytes;
      CHECK(std::abs(saved - weights * (ranks - 1) / ranks) < 64 * ranks * (kLayers + 1));
      double listed = 0;
      for (const auto& kind : simulate::memory_by_kind(together)) listed += kind.bytes;
      CHECK(listed == Approx(static_cast<double>(together.peak_bytes)));
      CHECK(find(step(together), "comm::all_gather") == step(together).end());
      CHECK(count({.instructions = step(together)}, "comm::barrier") == 1);
      CHECK(count({.instructions = step(apart)}, "comm::all_gather") == kLayers);
      CHECK_THAT(print(together), Contains("one copy of " + std::to_string(ranks) + " ranks"));
      CHECK_THAT(summary(together), Contains("one copy of " + std::to_string(ranks) + " ranks"));
    }
  }
}

TEST_CASE("a validation borrows weights of one copy, and a program without steps holds them") {
  auto borrowed = compiled(2, 1, true, {.evaluation = true, .borrow_weights = true});
  CHECK(!frame_of_one_copy(borrowed));
  auto own = compiled(2, 1, true, {.evaluation = true});
  CHECK(frame_of_one_copy(own));
  for (const auto& section : own.sections) CHECK(count(section, "comm::barrier") == 0);
}

TEST_CASE("one copy of weights that is written too early or read too early is caught") {
  const auto good = compiled(2, 1, true);
  const auto caught = [](const Program& program, const std::string& rule) {
    CHECK_THROWS_WITH(verify_one_copies(program), Contains(rule));
  };
  CHECK_NOTHROW(verify_one_copies(good));
  SECTION("no barrier after the step") {
    auto program = good;
    auto& list = step(program);
    const auto event = find(list, "comm::barrier")->event;
    std::erase_if(list, [&](const Instruction& i) { return i.event == event; });
    caught(program, "must end with a barrier");
  }
  SECTION("the barrier is not waited for") {
    auto program = good;
    auto& list = step(program);
    const auto event = find(list, "comm::barrier")->event;
    std::erase_if(list, [&](const Instruction& i) {
      return i.kind == Instruction::Kind::wait && i.event == event;
    });
    caught(program, "must end with a barrier");
  }
  SECTION("an update before a collective that all ranks join after their last read") {
    auto program = good;
    const auto update = *find(step(program), "perigee::adamw_");
    auto& last = const_cast<Section&>(section(program, "micro_last")).instructions;
    last.insert(last.begin(), update);
    caught(program, "after all have read it");
  }
  SECTION("a collective that sends the weights") {
    auto program = good;
    auto send = *find(step(program), "comm::barrier");
    send.op = "comm::all_gather";
    send.args = {{"self", send.outputs.front()}, {"axis", std::string("data")}};
    send.outputs.clear();
    send.event = program.events++;
    const Instruction wait{.kind = Instruction::Kind::wait, .event = send.event};
    auto& last = const_cast<Section&>(section(program, "micro_last")).instructions;
    last.insert(last.begin(), {send, wait});
    CHECK_NOTHROW(verify_one_copies(program));
    last.erase(last.begin() + 1);
    caught(program, "after all have read it");
  }
  SECTION("a collective that writes the weights") {
    auto program = good;
    auto& list = step(program);
    auto gather = *find(list, "comm::barrier");
    gather.op = "comm::all_reduce";
    gather.args = {{"self", gather.outputs.front()}, {"axis", std::string("data")}};
    gather.outputs.resize(1);
    list.insert(list.begin(), gather);
    caught(program, "in place");
  }
}

TEST_CASE("plans whose ranks cannot hold one copy of weights are refused with the reason") {
  const auto graph = mlp({.layers = kLayers, .batch = 24});
  const auto refused = [&](plan::Plan plan, const std::string& reason) {
    CHECK_THROWS_WITH(plan::verify(plan, graph), Contains("one copy") && Contains(reason));
  };
  refused(with_units(graph, 2, 3, true), "in parts");
  auto plan = with_units(graph, 2, 1, true);
  plan.overlap.step = true;
  refused(plan, "overlap.step");
  plan = with_units(graph, 2, 1, true);
  plan.precision.dtype = graph::DType::bfloat16;
  plan.precision.parameters = plan::Precision::Parameters::masters;
  refused(plan, "masters");
}
