#include "train/measure/repeated_blocks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <map>

#include "capture/models/models.h"
#include "simulate/op_cost.h"
#include "tests/support/torch_test.h"
#include "train/measure/solo_run.h"
#include "train/step/step_spec.h"
#include "train/trainer.h"

namespace perigee::train {
namespace {

using compile::Instruction;

// The programs of a GPT with `layers` layers.
struct Compiled {
  job::Job job;
  plan::Plan plan;
  compile::Programs programs;

  Compiled(int layers, const std::string& strategy, int64_t ranks)
      : job(Job::parse(fmt::format("[model]\nkind = 'gpt'\nlayers = {}\nwidth = 16\nheads = 2\n"
                                   "dropout = 0.1\nvocab = 32\n[data]\nsynthetic = true\n"
                                   "sequence = 8\n[batch]\nglobal = 8\n[cluster]\ndevice = 'cpu'\n",
                                   layers),
                       "test.toml")) {
    auto built = make_model(job.model, job.data.sequence);
    Batch example;
    for (const auto& field : built.batch) {
      auto shape = field.shape;
      shape.insert(shape.begin(), 1);
      example[field.name] = at::zeros(shape, at::kLong);
    }
    const auto source = perigee::source(built.model.module, example, built.model.forward);
    auto planned = make_plan(source, Strategy::data(strategy), job, {ranks});
    plan = planned.plan;
    compile::NoTraces traces;
    programs = compile::compile_all(planned.captured.graph, plan,
                                    step_spec(job, planned.captured.graph), traces);
  }

  // Counts the ops, by key, and collectives that all ranks run in a step. Ops that a shortened
  // program has only to keep values defined (they represent no op) are left out.
  std::map<std::string, int> counts_of_step(bool shortened) const {
    const auto repeats = shortened ? find_repeated_blocks(programs, plan.mesh) : RepeatedBlocks();
    std::map<std::string, int> counts;
    for (size_t position = 0; position < programs.ranks.size(); ++position) {
      const auto [program, represents] = shorten(programs.of(position), repeats);
      for (const auto& run : program.order) {
        const auto& list = program.sections[run.section].instructions;
        for (size_t i = 0; i < list.size(); ++i) {
          if (list[i].kind == Instruction::Kind::collective) {
            const auto exchange = simulate::exchange_of(program, list[i], plan.mesh, program.rank);
            ++counts[fmt::format("{} {}", list[i].op, exchange.bytes)];
          } else if (list[i].kind == Instruction::Kind::op && represents[run.section][i] > 0) {
            ++counts[compile::key(simulate::instance_of(program, list[i]))];
          }
        }
      }
    }
    return counts;
  }
};

int64_t total(const std::map<std::string, int>& counts) {
  int64_t sum = 0;
  for (const auto& [key, count] : counts) sum += count;
  return sum;
}

const std::vector<std::pair<std::string, int64_t>> kStrategies = {
    {R"([["parallel_mode", [["data", 1]]]])", 1},
    {R"([["parallel_mode", [["data", 2]]], ["gradient_accumulation", {"microbatches": 2}]])", 2},
    {R"([["parallel_mode", [["data", 2]]], ["fsdp", {}]])", 2},
    {R"([["parallel_mode", [["tensor", 2]]], "tensor_parallel", ["checkpoint", ["blocks.*"]]])", 2},
    {R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {}]])", 2}};

}  // namespace

TEST_CASE("a deep model measures as many ops as a shallow one, and each distinct op") {
  for (const auto& [strategy, ranks] : kStrategies) {
    INFO(strategy);
    const bool pipe = strategy.find("pipe") != strategy.npos;
    const Compiled few(pipe ? 8 : 4, strategy, ranks), many(48, strategy, ranks);
    const auto all = many.counts_of_step(false), least = few.counts_of_step(true),
               taken = many.counts_of_step(true);
    CHECK(total(all) > 5 * total(least));
    // The first or last block may be of a kind of its own.
    CHECK(4 * total(taken) <= 5 * total(least));
    for (const auto& [key, count] : all) {
      INFO(key);
      CHECK(taken.contains(key));
    }
    CHECK(taken.size() == all.size());
    // The shallow model has no block to leave out.
    CHECK(least == few.counts_of_step(false));
  }
}

TEST_CASE("the measured blocks represent all blocks") {
  const Compiled many(48, kStrategies[0].first, 1);
  const auto repeats = find_repeated_blocks(many.programs, many.plan.mesh);
  CHECK(repeats.left_out() == 44);
  double sum = 0;
  for (const auto& [block, number] : repeats.represents) sum += number;
  CHECK(sum == Approx(48));
  CHECK(repeats.represents.at("blocks.0") == 1);
  CHECK(repeats.represents.at("blocks.1") == 23);
  CHECK(repeats.represents.at("blocks.47") == 1);
}

TEST_CASE("blocks of each kind are measured") {
  // Recomputation of some blocks makes two kinds of blocks.
  const Compiled many(16, R"([["parallel_mode", [["data", 1]]], ["checkpoint", ["blocks.1*"]]])",
                      1);
  const auto repeats = find_repeated_blocks(many.programs, many.plan.mesh);
  CHECK(repeats.left_out() ==
        8);  // 9 blocks are kept (0, 2 to 9), 7 recomputed (1, 10 to 15); 4 of each are measured
}

TEST_CASE("a step without most of its blocks has a finite loss of the usual size") {
  const Compiled many(48, kStrategies[0].first, 1);
  SoloRun rehearsal(many.programs.programs[0], many.plan.mesh, exec::cpu_device(), many.job,
                    nullptr);
  for (int step = 0; step < 3; ++step) CHECK(!rehearsal.run().empty());
  const double loss = rehearsal.result("loss");
  CHECK(loss > 0.1);
  CHECK(loss < 20);
}

}  // namespace perigee::train
