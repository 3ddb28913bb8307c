// half's sharded masters (zero1, zero2): bit-equal to whole masters; low weights gathered once a
// step; memory; negative controls.
#include <fmt/format.h>

#include <map>
#include <set>

#include "plan/units.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Frame;
using compile::Instruction;
using compile::Program;

constexpr int64_t kMastersRows = 16;
const std::string kDeep = "kind = 'mlp'\ninputs = 9\nwidth = 10\nlayers = 5\noutputs = 5\n",
                  kHalf = R"(["half", {"dtype": "bf16", "gradients": "float32"}])",
                  kStages = R"(, ["pipeline_parallel", {"schedule": "interleaved", "chunks": 2}])";
// Without clipping, gradients are scaled by one for any order of the norm's sum.
const compile::StepSpec kMastersSpec{};

const Given& deep(int64_t microbatches) {
  static std::map<int64_t, Given> known;
  const auto [at, added] = known.try_emplace(microbatches);
  if (added) {
    torch::manual_seed(5);
    at->second = built_in(kDeep, kMastersRows, microbatches, "float32");
  }
  return at->second;
}

plan::Plan masters_plan_for(const std::string& axes, const std::string& more,
                            int64_t microbatches) {
  return plan_of(deep(microbatches), strategy_on(axes, kHalf + more, microbatches), kMastersRows);
}

Program masters_program_of(const plan::Plan& plan, int64_t microbatches, int64_t rank = 0) {
  return compile_rank(deep(microbatches), plan, kMastersSpec, rank);
}

// The number of times that a step runs the op.
int64_t runs_of(const Program& program, const std::string& op) {
  int64_t count = 0;
  for (const auto& run : program.order) {
    for (const auto& i : program.sections[run.section].instructions) count += i.op == op;
  }
  return count;
}

}  // namespace

TEST_CASE("sharded masters train bit-equal to whole ones") {
  for (const int64_t microbatches : {1, 2, 4}) {
    const auto whole = train(deep(microbatches),
                             masters_plan_for(R"(["data", 2])", "", microbatches), {}, kMastersSpec,
                             3);
    const auto check = [&](const std::string& axes, const std::string& more) {
      INFO(axes << more << microbatches);
      const auto plan = masters_plan_for(axes, more, microbatches);
      const auto ranks = train(deep(microbatches), plan, {}, kMastersSpec, 3);
      CHECK(compare(whole[0], ranks, 1e-12) == "");
    };
    for (const std::string zero : {"zero1", "zero2"}) {
      for (const char* config : {"{}", R"({"match": "blocks.*"})"}) {
        check(R"(["data", 2])", fmt::format(R"(, ["{}", {}])", zero, config));
      }
      const auto parts = fmt::format(R"(, ["{}", {{"match": "blocks.*"}}])", zero);
      if (microbatches < 4) continue;
      const std::string axes = R"(["pipe", 2], ["data", 2])";
      check(axes, kStages + parts);
      check(axes, kStages + R"(, ["overlap", {"receives": true}])" + parts);
      check(axes,
            kStages + R"(, ["checkpoint", {"1": "blocks.*", "kept_microbatches": 1}])" + parts);
      check(axes, R"(, ["pipeline_parallel", {"schedule": "zb1p"}])" + parts);
    }
  }
}

TEST_CASE("low weights are gathered once a step, and masters take a rank's part of memory") {
  const auto bytes_of = [](const Program& program) {
    int64_t bytes = 0;
    for (const auto& frame : program.frames) {
      if (frame.kind == Frame::Kind::persistent) bytes += frame.bytes;
    }
    return bytes;
  };
  for (const int64_t microbatches : {1, 4}) {
    INFO(microbatches);
    const auto& given = deep(microbatches);
    int64_t elements = 0;
    for (const auto& input : given.graph.inputs) {
      if (input.kind == graph::Input::Kind::parameter) {
        elements += given.graph.type(input.value).numel();
      }
    }
    const auto whole = masters_plan_for(R"(["data", 2])", "", microbatches),
               parts = masters_plan_for(R"(["data", 2])", R"(, ["zero1", {"match": "blocks.*"}])",
                                        microbatches);
    const auto program = masters_program_of(parts, microbatches);
    CHECK(runs_of(program, "comm::all_gather") == std::ssize(plan::flats(parts, given.graph, 0)));
    // No microbatch rounds whole masters: the first one rounds the rank's part.
    CHECK(runs_of(masters_program_of(whole, microbatches), "perigee::cast") >=
          runs_of(program, "perigee::cast") + microbatches);
    // Weights and two states, half of each.
    const auto saved = bytes_of(masters_program_of(whole, microbatches)) - bytes_of(program);
    CHECK(saved == Approx(static_cast<double>(3 * 4 * elements / 2)).epsilon(0.05).margin(512));
    const auto ranks = train(given, parts, {}, kMastersSpec);
    CHECK(compare_memory(given, parts, ranks) == "");
  }
}

TEST_CASE("the weights of a later part are gathered while an earlier part runs") {
  const auto plan = masters_plan_for(R"(["pipe", 2], ["data", 2])",
                                     kStages + R"(, ["zero1", {"match": "blocks.*"}])", 4);
  const auto program = masters_program_of(plan, 4);
  std::map<int32_t, size_t> started;  // by event: the section
  size_t across = 0;
  for (size_t s = 0; s < program.sections.size(); ++s) {
    for (const auto& i : program.sections[s].instructions) {
      if (i.op == "comm::all_gather") started[i.event] = s;
      const bool waits = i.kind == Instruction::Kind::wait && started.contains(i.event);
      across += waits && started[i.event] != s;
    }
  }
  CHECK(across > 0);
  CHECK_NOTHROW(compile::verify(program));
}

TEST_CASE("low weights that are not recast or not gathered are detected") {
  const auto whole = train(deep(2), masters_plan_for(R"(["data", 2])", "", 2), {}, kMastersSpec);
  const auto plan = masters_plan_for(R"(["data", 2])", R"(, ["zero1", {}])", 2);
  CHECK(compare(whole[0], train(deep(2), plan, {}, kMastersSpec), 1e-12) == "");
  const auto without = [&](const char* op) {
    int erased = 0;
    const auto ranks = train(
        deep(2), plan,
        [&](Program& program) {
          std::set<int32_t> events;
          for (auto& section : program.sections) {
            for (auto& i : section.instructions) {
              if (i.op == "comm::all_gather") events.insert(i.event);
            }
          }
          for (auto& section : program.sections) {
            erased += static_cast<int>(std::erase_if(section.instructions, [&](const auto& i) {
              if (std::string_view(op) == "comm::all_gather") return events.contains(i.event);
              return i.op == op && !i.outputs.empty() &&
                     program.values[i.outputs[0].index].name.text.ends_with(" whole");
            }));
          }
        },
        kMastersSpec);
    CHECK(erased > 0);
    return compare(whole[0], ranks, 1e-12);
  };
  CHECK(without("comm::all_gather") != "");
  CHECK(without("perigee::copy_") != "");
}

TEST_CASE("parts of a stage whose peaks of microbatches in flight differ in time share a frame") {
  const std::string model =
      "kind = 'gpt'\nlayers = 8\nwidth = 12\nheads = 3\nhidden = 20\nvocab = 11\n";
  torch::manual_seed(5);
  const auto given = built_in(model, kMastersRows, 8);
  const auto staged = strategy_on(
      R"(["pipe", 2])", R"(["pipeline_parallel", {"schedule": "interleaved", "chunks": 4}])", 8);
  const auto plan = plan_of(given, staged, kMastersRows);
  auto one = plan_of(given, strategy_on(R"(["data", 1])", "", 8), kMastersRows);
  const auto ranks = train(given, plan);
  CHECK(compare(train(given, one)[0], ranks) == "");
  CHECK(compare_memory(given, plan, ranks) == "");
  for (const int64_t rank : {0, 1}) {
    const auto program = compile_rank(given, plan, {}, rank);
    int64_t copies = 0;
    for (const auto& frame : program.frames) {
      if (frame.kind == Frame::Kind::microbatch) copies += frame.copies;
    }
    // (chunks - 1) * stages + 2 * later_stages + 1 microbatches are in flight, up to eight of each
    // part; at most one copy more for each of two pools.
    CHECK(copies <= 3 * 2 + 2 * (1 - rank) + 1 + 4);
  }
}

}  // namespace perigee::parity
