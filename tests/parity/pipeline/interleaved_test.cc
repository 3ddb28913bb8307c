// overlap's experts, interleaved microbatches: while the rows of one microbatch are in transit to
// experts, another one computes; the numbers are those of one device.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "simulate/op_cost.h"
#include "simulate/simulate.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;

constexpr int64_t kInterleavedRows = 16;

std::string moe(const std::string& more) {
  return "kind = 'moe'\nlayers = 2\nwidth = 24\nheads = 6\nhidden = 40\nvocab = 12\n"
         "experts = 6\n" +
         more;
}
const std::string kSample = "capacity_per = 'sample'\n";
const std::string kDropless = "capacity = 0\ndropless = true\ncapacity_per = 'sample'\ntop_k = 1\n";

const Given& model(const std::string& keys, int64_t microbatches) {
  static std::map<std::pair<std::string, int64_t>, Given> known;
  const auto [at, added] = known.try_emplace({keys, microbatches});
  if (added) {
    torch::manual_seed(5);
    at->second = built_in(moe(keys), kInterleavedRows, microbatches);
  }
  return at->second;
}

plan::Plan plan_on(const Given& given, const std::string& mesh, const std::string& methods,
                   int64_t microbatches) {
  return plan_of(given,
                 fmt::format(R"([["parallel_mode", [{}]],
                                 ["gradient_accumulation", {{"microbatches": {}}}]{}{}])",
                             mesh, microbatches, methods.empty() ? "" : ", ", methods),
                 kInterleavedRows);
}

const Outcome& one_device(const std::string& keys, int64_t microbatches) {
  static std::map<std::pair<std::string, int64_t>, Outcome> known;
  const auto [at, added] = known.try_emplace({keys, microbatches});
  if (added) {
    const auto& given = model(keys, microbatches);
    at->second = train(given, plan_on(given, R"(["data", 1])", "", microbatches))[0];
  }
  return at->second;
}

const std::string kInterleavedExperts = R"(["expert_parallel", {}])";
const std::string kInterleaved = kInterleavedExperts + R"(, ["overlap", {"experts": true}])";
constexpr const char* kTwo = R"(["expert", 2])";

// A program's runs by pass and microbatch: "F0 B0 F1 ...", one letter for each piece.
std::string passes_of(const Program& program) {
  std::string order;
  for (const auto& run : program.order) {
    const auto& name = program.sections[run.section].name();
    if (!name.starts_with("forward") && !name.starts_with("backward")) continue;
    order += fmt::format("{}{}{}", order.empty() ? "" : " ", name.front() == 'f' ? 'F' : 'B',
                         run.microbatch);
  }
  return order;
}

Program program_of(const std::string& mesh, const std::string& methods, int64_t microbatches,
                   int64_t rank = 0) {
  const auto& given = model(kSample, microbatches);
  return compile_rank(given, plan_on(given, mesh, methods, microbatches), {}, rank);
}

// Exchanges that another microbatch's instructions follow before they are waited for, of all.
std::pair<int, int> hidden_of(const Program& program) {
  int hidden = 0, all = 0;
  std::vector<std::pair<const compile::Run*, const Instruction*>> flat;
  for (const auto& run : program.order) {
    for (const auto& i : program.sections[run.section].instructions) flat.emplace_back(&run, &i);
  }
  for (size_t k = 0; k < flat.size(); ++k) {
    if (flat[k].second->op != "comm::exchange") continue;
    ++all;
    for (size_t later = k + 1; later < flat.size(); ++later) {
      const auto& [run, i] = flat[later];
      const bool same = run->microbatch == flat[k].first->microbatch;
      if (same && i->kind == Instruction::Kind::wait && i->event == flat[k].second->event) break;
      if (same || i->kind != Instruction::Kind::op) continue;
      ++hidden;
      break;
    }
  }
  return {hidden, all};
}

TEST_CASE("interleaved microbatches train as on one device") {
  struct Case {
    std::string keys, mesh, methods;
    int64_t microbatches;
  };
  const std::string both = R"(["expert", 2], ["data", 2])",
                    stages = R"(["expert", 2], ["pipe", 2])";
  const auto pipeline = [](const std::string& more) {
    return fmt::format(R"(, ["pipeline_parallel", {{{}}}])", more);
  };
  const std::string dropout = kSample + "dropout = 0.2\n";
  for (const auto& c : {
           Case{"", kTwo, kInterleaved, 2},
           Case{"capacity = 0.4\n", both, kInterleaved, 2},
           Case{kDropless, both, kInterleaved, 4},
           Case{dropout, kTwo, kInterleaved, 4},
           Case{kSample, R"(["data", 2])",
                R"(["expert_parallel", {"axis": "data"}], ["zero1", {}],
                   ["overlap", {"experts": true, "accumulate": true}])",
                4},
           Case{kSample, both,
                kInterleaved +
                    R"(, ["fsdp", {"match": ["blocks.*"]}], ["checkpoint", ["blocks.*"]])",
                4},
           Case{kSample, both,
                kInterleaved + R"(, ["zero2", {}], ["grad_comm", {"bucket_mb": 0.001}])", 2},
           Case{kSample, R"(["tensor", 2], ["expert", 2])",
                kInterleaved + R"(, ["tensor_parallel", {"sequence": true}])", 2},
           Case{kSample, R"(["context", 2], ["expert", 2])",
                kInterleaved + R"(, ["context_parallel", {}])", 2},
           Case{kSample, kTwo, kInterleaved + R"(, ["offload", ["blocks.*"]])", 4},
           Case{kDropless, stages, kInterleaved + pipeline(R"("starts": ["blocks.1"])"), 4},
           Case{kSample, stages,
                kInterleavedExperts + R"(, ["overlap", {"experts": true, "receives": true}])" +
                    pipeline(R"("starts": ["blocks.1"], "schedule": "eager_1f1b")"),
                4},
           Case{dropout, stages,
                kInterleaved + R"(, ["grad_comm", {"bucket_mb": 0.001}])" +
                    pipeline(R"("schedule": "interleaved", "chunks": 1)"),
                4},
           Case{kSample, stages,
                kInterleaved + pipeline(R"("starts": ["blocks.1"], "schedule": "zb1p")"), 4},
       }) {
    INFO(c.keys << c.mesh << c.methods);
    const auto& given = model(c.keys, c.microbatches);
    const auto plan = plan_on(given, c.mesh, c.methods, c.microbatches);
    const auto ranks = train(given, plan);
    CHECK(compare(one_device(c.keys, c.microbatches), ranks) == "");
    CHECK(compare_memory(given, plan, ranks) == "");
  }
}

TEST_CASE("a backward and the next forward pass alternate while rows are in transit") {
  const auto interleaved = program_of(kTwo, kInterleaved, 4);
  const auto order = passes_of(interleaved);
  INFO(order);
  // Each pass has two exchanges to wait for in each of two layers.
  CHECK(order ==
        "F0 F0 F0 F0 F0 B0 F1 B0 F1 B0 F1 B0 F1 B0 F1 B1 F2 B1 F2 B1 F2 B1 F2 B1 F2 "
        "B2 F3 B2 F3 B2 F3 B2 F3 B2 F3 B3 B3 B3 B3 B3");
  const auto plain = program_of(kTwo, kInterleavedExperts, 4);
  CHECK(passes_of(plain).empty());
  CHECK(hidden_of(plain).first == 0);
  const auto [hidden, all] = hidden_of(interleaved);
  CHECK(all == hidden_of(plain).second);
  // The exchanges of interleaved passes; places are sent beside rows.
  CHECK(hidden >= all / 2);
  CHECK(interleaved.peak_bytes > plain.peak_bytes);
  for (const auto& frame : interleaved.frames) {
    if (frame.kind == compile::Frame::Kind::microbatch) CHECK(frame.copies == 2);
  }
}

TEST_CASE("ranks of interleaved microbatches start the same collectives in one order") {
  const std::string mesh = R"(["expert", 2], ["data", 2], ["pipe", 2])";
  const auto methods = kInterleaved + R"(, ["pipeline_parallel", {"starts": ["blocks.1"]}])";
  std::map<int64_t, std::vector<std::string>> of_stage;
  for (int64_t rank = 0; rank < 8; ++rank) {
    const auto program = program_of(mesh, methods, 4, rank);
    std::vector<std::string> started;
    for (const auto& run : program.order) {
      for (const auto& i : program.sections[run.section].instructions) {
        if (i.kind != Instruction::Kind::collective) continue;
        started.push_back(
            fmt::format("{} {} {}", i.op, program.streams[i.stream].name(), run.microbatch));
      }
    }
    const auto [at, added] = of_stage.try_emplace(rank / 4, started);
    CHECK(at->second == started);
  }
  CHECK(of_stage.size() == 2);
}

TEST_CASE("a microbatch that computes on another one's rows is detected") {
  const auto& given = model(kSample, 4);
  const auto plan = plan_on(given, kTwo, kInterleaved, 4);
  // The last microbatch's forward pass reads the rows of the previous one.
  const auto swapped = [](Program& program) {
    for (auto& run : program.order) {
      const auto& name = program.sections[run.section].name();
      if (name.starts_with("forward") && run.microbatch == 3) run.microbatch = 2;
    }
  };
  CHECK(compare(one_device(kSample, 4), train(given, plan, swapped)) != "");
  const auto right = program_of(kTwo, kInterleaved, 4);
  CHECK_NOTHROW(compile::verify(right));
  // All microbatches in one copy of the frame.
  auto shared = right;
  for (auto& slot : shared.slots) std::fill(slot.begin(), slot.end(), 0);
  CHECK_THROWS(compile::verify(shared));
  // A piece does not wait for its rows.
  auto hasty = right;
  for (auto& section : hasty.sections) {
    if (section.name().find(".piece") == std::string::npos) continue;
    if (section.instructions.front().kind != Instruction::Kind::wait) continue;
    section.instructions.erase(section.instructions.begin());
    break;
  }
  CHECK_THROWS_WITH(compile::verify(hasty), Catch::Contains("waited for"));
}

TEST_CASE("the simulator predicts the exchange that interleaved microbatches hide") {
  // A device whose compute of a layer takes as long as the transfer of the layer's rows.
  cost::DeviceSpec device{.name = "d", .count = 2, .memory = 1e12, .bandwidth = 1e9};
  device.peak = {{graph::DType::float64, 1e9}, {graph::DType::float32, 1e9}};
  device.vector = 1e9;
  const cost::Cluster cluster{"test", {device}, {{"node", 2, 1e-6, 1e8, ""}}};
  cost::NoMeasurements none;
  const auto seconds = [&](const std::string& methods) {
    const auto& given = model(kSample, 4);
    const auto plan = plan_on(given, kTwo, methods, 4);
    static DryRuns traces;
    const auto programs = compile::compile_all(given.graph, plan, {}, traces);
    simulate::OpCosts costs(cluster, none);
    const auto simulation = simulate::simulate(programs, plan.mesh, costs);
    return std::pair(simulation.step_seconds, simulation.ranks[0].waiting);
  };
  const auto [plain, plain_waiting] = seconds(kInterleavedExperts);
  const auto [interleaved, waiting] = seconds(kInterleaved);
  INFO(plain << " " << interleaved << " " << plain_waiting << " " << waiting);
  CHECK(interleaved < plain);
  CHECK(waiting < 0.7 * plain_waiting);
}

TEST_CASE("overlap refuses interleaved microbatches with the reason") {
  const auto refusal = [](const std::string& keys, const std::string& mesh,
                          const std::string& methods, int64_t microbatches) -> std::string {
    DryRuns traces;
    try {
      const auto& given = model(keys, microbatches);
      compile::compile(given.graph, plan_on(given, mesh, methods, microbatches), {}, 0, traces);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(refusal(kSample, kTwo, kInterleaved, 1),
             Catch::Contains("a step has 1 microbatch: also use gradient_accumulation"));
  CHECK_THAT(refusal(kSample, R"(["data", 2])", R"(["overlap", {"experts": true}])", 2),
             Catch::Contains("but this plan has none: use expert_parallel"));
  CHECK_THAT(refusal(kSample, R"(["expert", 2], ["pipe", 2])",
                     kInterleaved + R"(, ["pipeline_parallel", {"schedule": "gpipe"}])", 4),
             Catch::Contains("no stage runs them in this order: use 1f1b"));
  CHECK_THAT(refusal(kSample, kTwo, kInterleaved + R"(, ["fp8", {"fp8_recipe": "delayed"}])", 2),
             Catch::Contains("with overlap's experts one begins before"));
}

}  // namespace
}  // namespace perigee::parity
