// The method offload: bit-equal numbers, and device memory that falls by the offloaded bytes, with
// negative controls.
#include <fmt/format.h>

#include "base/error.h"
#include "exec/executor.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Frame;
using compile::Instruction;
using compile::Program;

const Given& gpt(int64_t microbatches = 1) {
  static std::map<int64_t, Given> known;
  const auto [at, added] = known.try_emplace(microbatches);
  if (added) {
    torch::manual_seed(3);
    at->second = built_in(
        "kind = 'gpt'\nlayers = 4\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 11\ndropout = 0.1\n",
        kRows, microbatches);
  }
  return at->second;
}

constexpr const char* kOffloadOne = R"(["data", 1])";
constexpr const char* kOffloadTwo = R"(["data", 2])";

int64_t bytes_of(const Program& program, Frame::Kind kind, bool host) {
  int64_t bytes = 0;
  for (const auto& frame : program.frames) {
    if (frame.kind == kind && frame.host == host) bytes += frame.bytes * frame.copies;
  }
  return bytes;
}

Program program_of(const Given& given, const std::string& text) {
  return compile_rank(given, plan_of(given, text, kRows));
}

}  // namespace

TEST_CASE("offload changes no bit in any combination") {
  struct Case {
    const char* axes;
    const char* methods;  // beside offload
    const char* offload;
    int64_t microbatches = 1;
  };
  for (const auto& c : {
           Case{kOffloadOne, "", R"({"1": "blocks.*"})"},
           Case{kOffloadOne, "", R"({"1": "blocks.*", "optimizer": true, "prefetch": 0})", 2},
           Case{kOffloadOne, "", R"({"1": "**", "prefetch": 3})"},
           Case{kOffloadOne, R"(["checkpoint", ["blocks.*"]])", R"({"1": "blocks.*"})", 2},
           Case{kOffloadTwo, "", R"({"layers": 2, "optimizer": true})", 4},
           Case{kOffloadTwo, R"(["zero1", {}])", R"({"optimizer": true})"},
           Case{kOffloadTwo, R"(["zero2", {}])", R"({"layers": 3, "optimizer": true})", 2},
           Case{kOffloadTwo, R"(["fsdp", {}])",
                R"({"1": "blocks.*", "optimizer": true, "parameters": true})", 2},
           Case{kOffloadTwo, R"(["fsdp", {"reshard_after_forward": false}])",
                R"({"parameters": true, "prefetch": 0})"},
           Case{R"(["pipe", 2])", R"(["pipeline_parallel", {"schedule": "1f1b"}])",
                R"({"1": "blocks.*", "optimizer": true})", 4},
           Case{R"(["pipe", 2], ["data", 2])", R"(["pipeline_parallel", {"schedule": "zb1p"}])",
                R"({"1": "blocks.*"})", 4},
           Case{R"(["tensor", 2])", R"(["tensor_parallel", {"sequence": true}])",
                R"({"1": "blocks.*", "optimizer": true})", 2},
       }) {
    INFO(c.axes << " " << c.methods << " " << c.offload);
    const auto& given = gpt(c.microbatches);
    const auto without = plan_of(given, strategy_on(c.axes, c.methods, c.microbatches), kRows);
    const std::string methods = *c.methods ? std::string(c.methods) + ", " : "";
    const auto plan = plan_of(
        given, strategy_on(c.axes, methods + R"(["offload", )" + c.offload + "]", c.microbatches),
        kRows);
    const auto ranks = train(given, plan);
    const auto others = train(given, without);
    for (size_t r = 0; r < ranks.size(); ++r) {
      CHECK(ranks[r].losses == others[r].losses);
      CHECK(ranks[r].norms == others[r].norms);
      REQUIRE(ranks[r].tensors.size() == others[r].tensors.size());
      for (auto a = ranks[r].tensors.begin(), b = others[r].tensors.begin();
           a != ranks[r].tensors.end(); ++a, ++b) {
        INFO(a->first);
        CHECK(at::equal(a->second.first, b->second.first));
      }
    }
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("the device's peak falls by the offloaded bytes except those in transit") {
  const auto& given = gpt();
  const auto plain = program_of(given, strategy_on(kOffloadOne, ""));
  CHECK(plain.host_bytes == 0);

  // All optimizer state leaves the persistent frame.
  const auto state = program_of(given,
                                strategy_on(kOffloadOne, R"(["offload", {"optimizer": true}])"));
  CHECK(bytes_of(state, Frame::Kind::persistent, true) == state.host_bytes);
  CHECK(bytes_of(plain, Frame::Kind::persistent, false) ==
        bytes_of(state, Frame::Kind::persistent, false) + state.host_bytes);
  int64_t elements = 0;
  for (const auto& input : given.graph.inputs) {
    if (input.kind == graph::Input::Kind::parameter)
      elements += given.graph.type(input.value).numel();
  }
  CHECK(state.host_bytes >= 2 * 8 * elements);
  CHECK(state.host_bytes < 2 * 8 * elements + 64 * 100);
  CHECK(state.peak_bytes < plain.peak_bytes);

  // The device holds the activations of two of four blocks at a time (the peaks are of two ops).
  const auto kept = program_of(given, strategy_on(kOffloadOne, R"(["offload", ["blocks.*"]])"));
  const auto one =
      program_of(given, strategy_on(kOffloadOne, R"(["offload", ["blocks.1"]])")).host_bytes;
  CHECK(bytes_of(kept, Frame::Kind::scratch, true) == kept.host_bytes);
  CHECK(kept.host_bytes >= 4 * one - 64 * 100);
  CHECK(plain.peak_bytes - kept.peak_bytes >= kept.host_bytes - 2 * one - 64 * 150);

  // Ranks' parts of the parameters leave the frame, too.
  const auto whole = program_of(given, strategy_on(kOffloadTwo, R"(["fsdp", {}])"));
  const auto parts = program_of(given,
                                strategy_on(kOffloadTwo, R"(["fsdp", {"cpu_offload": true}])"));
  CHECK(bytes_of(whole, Frame::Kind::persistent, false) ==
        bytes_of(parts, Frame::Kind::persistent, false) + parts.host_bytes);
  CHECK(parts.host_bytes >= 3 * 8 * elements / 2);
  CHECK(parts.peak_bytes < whole.peak_bytes);
  const auto prediction = [&](const char* methods) {
    DryRuns traces;
    return compile::predict_memory(given.graph,
                                   plan_of(given, strategy_on(kOffloadTwo, methods), kRows),
                                   {.clip_norm = 0.5}, traces);
  };
  CHECK(prediction(R"(["fsdp", {"cpu_offload": true}])").host_bytes ==
        std::vector<int64_t>{parts.host_bytes, parts.host_bytes});
  CHECK(prediction(R"(["fsdp", {}])").host_bytes.empty());
}

TEST_CASE("a trace shows copies to the host beside ops") {
  const auto& given = gpt();
  const auto program = program_of(
      given, strategy_on(kOffloadOne, R"(["offload", {"1": "blocks.*", "optimizer": true}])"));
  CHECK_THAT(compile::summary(program), Catch::Contains("store over to host") &&
                                            Catch::Contains("fetch over from host") &&
                                            Catch::Contains("persistent host"));
  // Ops run between a copy's start and its wait, if there are any to run.
  int64_t copies = 0, beside = 0;
  for (const auto& section : program.sections) {
    const auto& list = section.instructions;
    for (size_t i = 0; i < list.size(); ++i) {
      if (!compile::is_copy(list[i].op)) continue;
      ++copies;
      for (size_t j = i + 1; j < list.size(); ++j) {
        if (list[j].kind == Instruction::Kind::wait && list[j].event == list[i].event) break;
        if (list[j].kind != Instruction::Kind::op) continue;
        ++beside;
        break;
      }
    }
  }
  CHECK(copies > 50);
  CHECK(beside > copies * 3 / 4);
  const auto communicator = exec::single_communicator();
  exec::Executor executor(program, *communicator,
                          plan_of(given, strategy_on(kOffloadOne, ""), kRows).mesh);
  executor.record(true);
  executor.run({.step = 1,
                .scalars = {{"lr.0", 0.01}},
                .data = [&](const std::string& name, int64_t) { return given.inputs.at(name); }});
  int64_t recorded = 0, bytes = 0;
  for (const auto& interval : executor.intervals()) {
    if (!compile::is_copy(interval.name)) continue;
    ++recorded;
    bytes += interval.bytes;
    CHECK(interval.end >= interval.begin);
  }
  CHECK(recorded == copies);
  CHECK(bytes >= 2 * program.host_bytes - 64 * 200);
}

TEST_CASE("a missing copy, or memory used too soon, is detected") {
  const auto& given = gpt();
  const auto plan = plan_of(
      given, strategy_on(kOffloadOne, R"(["offload", {"1": "blocks.*", "optimizer": true}])"),
      kRows);
  const auto one = train(given, plan_of(given, strategy_on(kOffloadOne, ""), kRows))[0];
  CHECK(compare(one, train(given, plan)) == "");
  for (const char* part : {"forward", "step"}) {
    const auto forget = [&](Program& program) {
      for (auto& section : program.sections) {
        if ((section.name() == "step") != (std::string(part) == "step")) continue;
        std::erase_if(section.instructions, [](const Instruction& instruction) {
          return instruction.op == "host::store";
        });
      }
    };
    INFO(part);
    CHECK(compare(one, train(given, plan, forget)) != "");
  }
  auto program = compile_rank(given, plan);
  auto& list = program.sections[0].instructions;
  const auto at = std::find_if(list.begin(), list.end(), [](const Instruction& instruction) {
    return instruction.op == "host::fetch";
  });
  REQUIRE(at != list.end());
  auto open = program;
  auto& instructions = open.sections[0].instructions;
  std::erase_if(instructions, [&](const Instruction& instruction) {
    return instruction.kind == Instruction::Kind::wait && instruction.event == at->event;
  });
  CHECK_THROWS_WITH(compile::verify(open), Catch::Contains("waited for"));
  // An op that reads the host's memory.
  at->op = "comm::send";
  CHECK_THROWS_WITH(compile::verify(program), Catch::Contains("only copies between"));
}

TEST_CASE("offloading nothing, too much or a missing layer is refused") {
  const auto& given = gpt();
  const auto why = [&](const char* offload) -> std::string {
    try {
      plan_of(given, strategy_on(kOffloadOne, std::string(R"(["offload", )") + offload + "]"),
              kRows);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(why("{}"), Catch::Contains("give scopes whose activations are offloaded"));
  CHECK_THAT(why(R"({"layers": 5})"), Catch::Contains("at most the 4 matched scopes"));
  CHECK_THAT(why(R"({"parameters": true})"), Catch::Contains("fsdp"));
  CHECK_THAT(why(R"(["block.*"])"), Catch::Contains("blocks"));
  CHECK_THAT(why(R"({"optimizer": true, "prefetch": -1})"), Catch::Contains("at least 0"));
  CHECK(why(R"({"optimizer": true})") == "");
}

}  // namespace perigee::parity
