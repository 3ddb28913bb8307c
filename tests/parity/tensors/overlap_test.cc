// The method overlap: the numbers of one device, the program's order, negative controls.
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "exec/op_threads.h"
#include "tests/parity/support/built_in.h"
#include "tests/parity/support/ranks.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using compile::Instruction;
using compile::Program;
using compile::Section;

const compile::StepSpec kSpec{};  // no clipping

const Given& gpt(int64_t microbatches = 1) {
  static std::map<int64_t, Given> known;
  const auto [at, added] = known.try_emplace(microbatches);
  if (added) {
    torch::manual_seed(3);
    at->second = built_in(kGpt, kRows, microbatches);
  }
  return at->second;
}

constexpr const char* kOne = R"(["data", 1])";
constexpr const char* kTwo = R"(["data", 2])";
constexpr const char* kTensor = R"(["tensor", 2])";
const std::string kSequence = R"(["tensor_parallel", {"sequence": true}])";
const std::string kSmallBuckets = R"(["grad_comm", {"bucket_mb": 0.001}], )";

plan::Plan plan_for(const char* axes, const std::string& methods, int64_t microbatches = 1) {
  return plan_of(gpt(microbatches), strategy_on(axes, methods, microbatches), kRows);
}

Program program_of(const char* axes, const std::string& methods, int64_t microbatches = 1) {
  static DryRuns traces;
  exec::set_op_threads(1);
  return compile::compile(gpt(microbatches).graph, plan_for(axes, methods, microbatches), kSpec, 0,
                          traces);
}

int64_t within_blocks(const Program& program, const std::string& op) {
  int64_t found = 0;
  for (const auto& section : program.sections) {
    for (const auto& i : section.instructions)
      found += i.op == op && i.scope.starts_with("blocks.");
  }
  return found;
}

const Section& section_of(const Program& program, const std::string& name) {
  for (const auto& section : program.sections) {
    if (section.name() == name) return section;
  }
  throw std::runtime_error("no section " + name);
}

const Outcome& one_device(int64_t microbatches) {
  static std::map<int64_t, Outcome> known;
  const auto [at, added] = known.try_emplace(microbatches);
  if (added) {
    at->second = train(gpt(microbatches), plan_for(kOne, "", microbatches), {}, kSpec)[0];
  }
  return at->second;
}

// Returns whether an op of that name runs between the start of some collective and its wait.
bool runs_beside(const Section& section, const std::string& op, const std::string& collective) {
  const auto& list = section.instructions;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].op != collective) continue;
    for (size_t j = i + 1; j < list.size(); ++j) {
      if (list[j].kind == Instruction::Kind::wait && list[j].event == list[i].event) break;
      if (list[j].op == op) return true;
    }
  }
  return false;
}

// Returns the number of gathers of the backward pass with a product between start and wait.
int64_t backward_gathers_beside(const Program& program) {
  int64_t found = 0;
  for (const auto& section : program.sections) {
    const auto& list = section.instructions;
    for (size_t i = 0; i < list.size(); ++i) {
      if (list[i].op != "comm::all_gather" || list[i].phase != graph::Phase::backward) continue;
      for (size_t j = i + 1; j < list.size(); ++j) {
        if (list[j].kind == Instruction::Kind::wait && list[j].event == list[i].event) break;
        if (list[j].op != "aten::mm") continue;
        ++found;
        break;
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("overlapped programs train as one device does") {
  struct Case {
    const char* axes;
    std::string methods;
    int64_t microbatches;
  };
  for (const auto& c : {
           Case{kOne, R"(["overlap", {"accumulate": true}])", 2},
           Case{kTwo, R"(["overlap", {"accumulate": true, "step": true}])", 4},
           Case{kTwo, kSmallBuckets + R"(["overlap", {"step": true}])", 1},
           Case{kTwo, R"(["zero1", {}], ["overlap", {"step": true, "accumulate": true}])", 2},
           Case{kTwo, R"(["zero2", {}], ["overlap", {"step": true}])", 2},
           Case{kTwo, R"(["fsdp", {}], ["overlap", {"step": true, "accumulate": true}])", 2},
           Case{kTensor, R"(["tensor_parallel", {}], ["overlap", {"slices": 2}])", 1},
           Case{R"(["tensor", 2], ["data", 2])",
                R"(["tensor_parallel", {}], ["overlap", {"slices": 5, "accumulate": true}])", 2},
           // Whole samples, and, with one sample on a rank, parts of its sequence.
           Case{kTensor, kSequence + R"(, ["overlap", {"slices": 2}])", 1},
           Case{R"(["tensor", 3], ["data", 2])",
                kSequence + R"(, ["overlap", {"slices": 3, "accumulate": true}])", 2},
           Case{kTensor, kSequence + R"(, ["overlap", {"slices": 2}])", 8},
           Case{R"(["tensor", 2], ["data", 2])", kSequence + R"(, ["overlap", {"slices": 7}])", 4},
           Case{R"(["pipe", 2])",
                R"(["pipeline_parallel", {"schedule": "zb1p"}],
                   ["overlap", {"step": true, "accumulate": true}])",
                4},
           Case{R"(["pipe", 2], ["data", 2])",
                R"(["pipeline_parallel", {"schedule": "1f1b"}], ["overlap", {"receives": true}])",
                4},
           Case{R"(["pipe", 2])",
                R"(["pipeline_parallel", {"schedule": "interleaved", "chunks": 1}],
                   ["overlap", {"receives": true}])",
                4},
           Case{kTwo, R"(["offload", {"optimizer": true}], ["overlap", {"step": true}])", 1},
       }) {
    INFO(c.axes << " " << c.methods);
    const auto plan = plan_for(c.axes, c.methods, c.microbatches);
    const auto ranks = train(gpt(c.microbatches), plan, {}, kSpec);
    CHECK(compare(one_device(c.microbatches), ranks) == "");
    DryRuns traces;
    const auto predicted =
        compile::predict_memory(gpt(c.microbatches).graph, plan, kSpec, traces).peak_bytes;
    for (size_t r = 0; r < ranks.size(); ++r) CHECK(predicted[r] == ranks[r].counted);
  }
}

TEST_CASE("fused products add to their gradients in place") {
  const auto plain = program_of(kOne, "", 2);
  const auto fused = program_of(kOne, R"(["overlap", {"accumulate": true}])", 2);
  CHECK(count(plain, "perigee::addmm_") == 0);
  const auto products = count(fused, "perigee::addmm_");
  CHECK(products >= 2 * 4);  // two blocks with four weights each
  CHECK(count(fused, "perigee::accumulate_") == count(plain, "perigee::accumulate_") - products);
  CHECK(count(fused, "aten::mm") == count(plain, "aten::mm") - products);
  CHECK(fused.peak_bytes <= plain.peak_bytes);
  // One product that adds nothing.
  const auto forget = [](Program& program) {
    for (auto& section : program.sections) {
      auto& list = section.instructions;
      const auto at = std::find_if(list.begin(), list.end(),
                                   [](const Instruction& i) { return i.op == "perigee::addmm_"; });
      if (at == list.end()) continue;
      list.erase(at);
      return;
    }
  };
  CHECK(compare(one_device(2),
                train(gpt(2), plan_for(kOne, R"(["overlap", {"accumulate": true}])", 2), forget,
                      kSpec)) != "");
}

TEST_CASE("a bucket is stepped while others are reduced") {
  const auto plain = program_of(kTwo, kSmallBuckets + R"(["zero1", {}])");
  const auto early = program_of(kTwo,
                                kSmallBuckets + R"(["zero1", {}], ["overlap", {"step": true}])");
  CHECK(count(plain, "perigee::adamw_") == count(early, "perigee::adamw_"));
  const auto waits_before_step = [](const Program& program) {
    int64_t waits = 0, before = -1;
    for (const auto& i : section_of(program, "step").instructions) {
      if (i.op == "perigee::adamw_" && before < 0) before = waits;
      waits += i.kind == Instruction::Kind::wait;
    }
    return before;
  };
  CHECK(waits_before_step(early) < waits_before_step(plain));
  CHECK(waits_before_step(early) <= 1);
  // The wait for a reduction in flight is required.
  auto program = early;
  for (auto& section : program.sections) {
    if (section.name() != "step") continue;
    const auto at = std::find_if(
        section.instructions.begin(), section.instructions.end(),
        [](const Instruction& i) { return i.kind == Instruction::Kind::wait; });
    REQUIRE(at != section.instructions.end());
    section.instructions.erase(at);
  }
  CHECK_THROWS_WITH(compile::verify(program), Catch::Contains("waited for"));
}

TEST_CASE("slices of a product are reduced while the next ones are computed") {
  const auto plain = program_of(kTensor, R"(["tensor_parallel", {}])");
  const std::string sliced_by_3 = R"(["tensor_parallel", {}], ["overlap", {"slices": 3}])";
  const auto sliced = program_of(kTensor, sliced_by_3);
  const auto reduces = [](const Program& program) { return count(program, "comm::all_reduce"); };
  // Two products in the forward and one in the backward pass of each of two blocks.
  CHECK(reduces(sliced) == reduces(plain) + 2 * 2 * 3);
  CHECK((count(sliced, "aten::mm") - count(plain, "aten::mm")) ==
        (reduces(sliced) - reduces(plain)));
  CHECK(runs_beside(section_of(sliced, "micro"), "aten::mm", "comm::all_reduce"));
  // The executor's trace has the pieces; without one of them the ranks do not train as one does.
  const auto forget = [](Program& program) {
    auto& list = program.sections[0].instructions;
    int64_t seen = 0;
    std::erase_if(list, [&](const Instruction& i) {
      return i.op == "comm::all_reduce" && i.in_place && ++seen == 2;
    });
  };
  CHECK(compare(one_device(1), train(gpt(), plan_for(kTensor, sliced_by_3), forget, kSpec)) != "");
}

// The gradients of queries, keys and values, and of gate and up, with respect to their input.
TEST_CASE("slices of added products are summed over ranks one by one") {
  torch::manual_seed(3);
  const auto given = built_in(
      "kind = 'llama'\nlayers = 2\nwidth = 48\nheads = 6\nkv_heads = 6\nhidden = 96\nvocab = 11\n",
      kRows);
  const auto plan_with = [&](const char* axes, const std::string& methods) {
    return plan_of(given, strategy_on(axes, methods), kRows);
  };
  const auto one = train(given, plan_with(kOne, ""), {}, kSpec)[0];
  for (const auto& methods : {std::string(R"(["tensor_parallel", {}])"), kSequence}) {
    INFO(methods);
    const auto op = methods == kSequence ? "comm::reduce_scatter" : "comm::all_reduce";
    const auto plan = plan_with(kTensor, methods + R"(, ["overlap", {"slices": 3}])");
    DryRuns traces;
    const auto program = compile::compile(given.graph, plan, kSpec, 0, traces);
    // Two blocks of three slices, in which two products add to one, and one to one.
    CHECK(count(program, "perigee::addmm_") == 2 * 3 * (2 + 1));
    CHECK(runs_beside(section_of(program, "micro"), "perigee::addmm_", op));
    const auto ranks = train(given, plan, {}, kSpec);
    CHECK(compare(one, ranks) == "");
    const auto forget = [](Program& edited) {
      auto& list = edited.sections[0].instructions;
      list.erase(std::find_if(list.begin(), list.end(),
                              [](const Instruction& i) { return i.op == "perigee::addmm_"; }));
    };
    CHECK(compare(one, train(given, plan, forget, kSpec)) != "");
  }
}

TEST_CASE("a sequence's slices are scattered and gathered beside products") {
  const std::string by_2 = kSequence + R"(, ["overlap", {"slices": 2}])";
  // Eight samples are sliced by samples; one, within each rank's part of its sequence.
  for (const int64_t microbatches : {1, 8}) {
    INFO(microbatches << " microbatches");
    const auto plain = program_of(kTensor, kSequence, microbatches),
               sliced = program_of(kTensor, by_2, microbatches);
    // Every sum of the blocks is that of one product. The operands of their first and third product
    // are gathered in the forward pass, those of the second and fourth in the backward pass.
    const auto more = [&](const std::string& op) {
      return within_blocks(sliced, op) - within_blocks(plain, op);
    };
    CHECK(more("comm::reduce_scatter") > 0);
    CHECK(more("comm::reduce_scatter") == within_blocks(plain, "comm::reduce_scatter"));
    CHECK(more("comm::all_gather") >= 2 * 4);
    const auto& section = section_of(sliced, microbatches > 1 ? "micro_last" : "micro");
    CHECK(runs_beside(section, "aten::mm", "comm::reduce_scatter"));
    CHECK(runs_beside(section, "aten::mm", "comm::all_gather"));
    // One of the products' slices is left out.
    const auto forget = [](Program& program) {
      auto& list = program.sections[0].instructions;
      int64_t seen = 0;
      const auto is_fourth = [&](const Instruction& i) {
        return i.op == "aten::mm" && ++seen == 4;
      };
      list.erase(std::find_if(list.begin(), list.end(), is_fourth));
    };
    CHECK(compare(one_device(microbatches),
                  train(gpt(microbatches), plan_for(kTensor, by_2, microbatches), forget, kSpec)) !=
          "");
  }
}

TEST_CASE("weight gradients hide the sums that the previous layer waits for") {
  for (const auto& methods : {std::string(R"(["tensor_parallel", {}])"), kSequence}) {
    const auto op = methods == kSequence ? "comm::reduce_scatter" : "comm::all_reduce";
    const auto program = program_of(kTensor, methods);
    CHECK(runs_beside(section_of(program, "micro"), "aten::mm", op));
    const auto at_once = program_of(kTensor, methods + R"(, ["grad_comm", {"overlap": false}])");
    CHECK_FALSE(runs_beside(section_of(at_once, "micro"), "aten::mm", op));
  }
}

TEST_CASE("bulk overlap runs the chosen gathers and sums beside products") {
  const auto beside = [](const std::string& bulk, const char* op) {
    const auto methods = kSequence + bulk;
    const auto program = program_of(kTensor, methods);
    return runs_beside(section_of(program, "micro"), "aten::mm", op);
  };
  const std::string gathers = R"(, ["overlap", {"bulk": ["gathers"]}])";
  const std::string sums = R"(, ["overlap", {"bulk": ["sums"]}])";
  const std::string none = R"(, ["overlap", {"bulk": []}])";
  CHECK(backward_gathers_beside(program_of(kTensor, kSequence)) > 0);
  CHECK(backward_gathers_beside(program_of(kTensor, kSequence + gathers)) > 0);
  CHECK(backward_gathers_beside(program_of(kTensor, kSequence + sums)) == 0);
  CHECK(beside(sums, "comm::reduce_scatter"));
  CHECK_FALSE(beside(gathers, "comm::reduce_scatter"));
  for (const auto& bulk : {sums, none}) {
    INFO(bulk);
    CHECK(compare(one_device(2),
                  train(gpt(2), plan_for(kTensor, kSequence + bulk, 2), {}, kSpec)) == "");
  }
  // Slices are still reduced beside products.
  const auto sliced = program_of(
      kTensor, kSequence + R"(, ["overlap", {"bulk": [], "slices": 2, "sliced": ["sums"]}])");
  CHECK(runs_beside(section_of(sliced, "micro"), "aten::mm", "comm::reduce_scatter"));
}

// One bucket of a rank's gradients of weights and biases is reduced over the other axis.
TEST_CASE("weight gradients that hide sums are complete before their bucket is reduced") {
  constexpr const char* kBoth = R"(["tensor", 2], ["data", 2])";
  const std::string methods = R"(["tensor_parallel", {}], ["grad_comm", {"bucket_mb": 25}])";
  const auto over = [](const Instruction& i, const std::string& axis) {
    return i.op == "comm::all_reduce" &&
           std::any_of(i.args.begin(), i.args.end(), [&](const auto& arg) {
             return arg.first == "axis" && arg.second == graph::Arg(axis);
           });
  };
  for (const int64_t microbatches : {1, 2}) {
    INFO(microbatches << " microbatches");
    const auto program = program_of(kBoth, methods, microbatches);
    const auto& section = section_of(program, microbatches > 1 ? "micro_last" : "micro");
    auto& list = section.instructions;
    // Between start and wait of a sum over tensor: a product, and its copy into the bucket.
    std::set<int32_t> beside;  // roots
    const auto root = [&](graph::ValueId v) {
      const auto of = program.values[v.index].view_of;
      return of.defined() ? of.index : v.index;
    };
    for (size_t i = 0; i < list.size(); ++i) {
      if (!over(list[i], "tensor") || list[i].phase != graph::Phase::backward) continue;
      for (size_t j = i + 1; j < list.size() && list[j].event != list[i].event; ++j) {
        if (list[j].kind != Instruction::Kind::op) continue;
        for (auto v : list[j].outputs) beside.insert(root(v));
      }
    }
    int64_t buckets = 0, with_biases = 0;
    for (const auto& i : list) {
      if (!over(i, "data")) continue;
      ++buckets;
      with_biases += beside.contains(root(i.outputs[0]));
    }
    CHECK(buckets > 0);
    CHECK(with_biases > 0);
    const auto plan = plan_for(kBoth, methods, microbatches);
    CHECK(compare(one_device(microbatches), train(gpt(microbatches), plan, {}, kSpec)) == "");
    const auto too_early = [&](Program& edited) {
      for (auto& part : edited.sections) {
        auto& all = part.instructions;
        const auto reduce = std::find_if(all.begin(), all.end(), [&](const auto& i) {
          return over(i, "data") && beside.contains(root(i.outputs[0]));
        });
        const auto first = std::find_if(all.begin(), reduce, [](const Instruction& i) {
          return i.phase == graph::Phase::backward && i.kind == Instruction::Kind::op;
        });
        if (!part.name().starts_with("micro") || reduce == all.end()) continue;
        std::rotate(first, reduce, reduce + 1);
      }
    };
    CHECK(compare(one_device(microbatches), train(gpt(microbatches), plan, too_early, kSpec)) !=
          "");
  }
}

TEST_CASE("a stage receives the next section's inputs while a section runs") {
  constexpr const char* kStages = R"(["pipe", 2])";
  const std::string staged = R"(["pipeline_parallel", {"schedule": "1f1b"}])",
                    ahead = staged + R"(, ["overlap", {"receives": true}])";
  const auto plain = program_of(kStages, staged, 4), early = program_of(kStages, ahead, 4);
  CHECK(count(plain, "comm::receive") == 2);  // one of the first microbatches, one of the others
  CHECK(count(early, "comm::receive") == 1);
  // The first stage: two forward passes, then backward and forward passes alternately. The
  // gradients of each backward pass are prefetched during the previous run.
  std::string order;
  for (const auto& run : early.order) {
    const auto& name = early.sections[run.section].name();
    if (name.find('.') == std::string::npos) continue;
    order += name.ends_with(".receive") ? 'R' : name.starts_with("forward") ? 'F' : 'B';
  }
  CHECK(order == "FRFBRFBRFRBB");
  CHECK_THAT(compile::summary(early), Catch::Contains("backward.0.receive x 4"));
  const auto forget = [](Program& program) {
    for (auto& section : program.sections) {
      if (!section.name().starts_with("backward.0")) continue;
      const auto at = std::find_if(section.instructions.begin(), section.instructions.end(),
                                   [](const Instruction& i) { return i.op == "perigee::copy_"; });
      if (at != section.instructions.end()) section.instructions.erase(at);
    }
  };
  CHECK(compare(one_device(4), train(gpt(4), plan_for(kStages, ahead, 4), forget, kSpec)) != "");
}

TEST_CASE("impossible overlap is refused with the reason") {
  DryRuns traces;
  const auto why = [&](const char* axes, const std::string& methods,
                       const compile::StepSpec& spec = kSpec) -> std::string {
    try {
      compile::compile(gpt().graph, plan_for(axes, methods), spec, 0, traces);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  CHECK_THAT(why(kOne, R"(["overlap", {}])"), Catch::Contains("give at least one of accumulate"));
  CHECK_THAT(why(kOne, R"(["overlap", {"slices": 2}])"), Catch::Contains("axis tensor"));
  CHECK_THAT(why(kOne, R"(["overlap", {"bulk": []}])"), Catch::Contains("axis tensor"));
  CHECK_THAT(
      why(kTensor, kSequence + R"(, ["overlap", {"bulk": ["gather"]}])"),
      Catch::Contains("bulk must list any of gathers, sums, but got \"gather\", did you mean"));
  CHECK_THAT(why(kOne, R"(["overlap", {"receives": true}])"), Catch::Contains("pipeline_parallel"));
  CHECK_THAT(why(kTensor, R"(["tensor_parallel", {}], ["overlap", {"slices": 0}])"),
             Catch::Contains("at least 1"));
  CHECK_THAT(why(kTensor, R"(["overlap", {"slices": 2}])"), Catch::Contains("the step has none"));
  CHECK_THAT(why(kTensor, kSequence + R"(, ["overlap", {"slices": 2, "sliced": ["sum"]}])"),
             Catch::Contains("but got \"sum\", did you mean \"sums\"?"));
  CHECK_THAT(why(kTensor, kSequence + R"(, ["overlap", {"slices": 2, "whole": ["**.none"]}])"),
             Catch::Contains("it has none like \"**.none\""));
  CHECK_THAT(why(kTensor, kSequence + R"(, ["overlap", {"whole": ["**.qkv"]}])"),
             Catch::Contains("give slices = 2"));
  CHECK_THAT(why(kOne, R"(["overlap", {"step": true}])", {.clip_norm = 1.0}),
             Catch::Contains("clip_norm"));
  CHECK_THAT(why(kOne, R"(["overlap", {"step": true}])", {.optimizer = "muon"}),
             Catch::Contains("muon"));
  CHECK_THAT(why(kOne, R"(["amp_native", {"dtype": "float16"}], ["overlap", {"step": true}])"),
             Catch::Contains("loss scale"));
}

}  // namespace perigee::parity
