// Time and memory of the methods: training steps of a GPT (4 layers, width 256, float32) on ranks
// of this process, against plain steps (data parallelism on two ranks) in the same run. Medians of
// interleaved steps. "arithmetic" is the ratio of the programs' operations, and overhead = step
// ratio / arithmetic. Exits with 1 if a loss differs from the plain one.
//
// Usage: bench_methods [SAMPLES [RUNS]]; samples of a step, default 8; steps measured, default 10.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "capture/models/models.h"
#include "compile/compile.h"
#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "exec/memory/dry_run.h"
#include "graph/flops.h"
#include "methods/method.h"
#include "tools/bench/gpt.h"

namespace {

using namespace perigee;
using compile::Binding;
using compile::Program;

constexpr int kWarmUp = 2;

struct Variant {
  std::string name, methods;  // as data, without the mesh
  int64_t microbatches = 1;
  double tolerance = 1e-5;  // relative, of the loss
  std::vector<Program> programs = {};
  plan::Plan plan = {};
  int64_t samples = 0;  // of a microbatch over all ranks
  std::vector<double> ms = {};
  double loss = 0, flops = 0;
};

// Returns the operations of a rank's step.
double flops_of(const Program& program) {
  graph::Graph values;
  for (const auto& value : program.values) values.add_value(value.type);
  std::vector<double> sections;
  for (const auto& section : program.sections) {
    double flops = 0;
    for (const auto& instruction : section.instructions) {
      if (instruction.kind != compile::Instruction::Kind::op) continue;
      graph::Node node{.op = instruction.op, .args = instruction.args};
      node.outputs = instruction.outputs;
      // addmm_ has no result of its own.
      if (node.op == "perigee::addmm_") node.op = "aten::mm";
      flops += graph::flops_of(values, node);
    }
    sections.push_back(flops);
  }
  double flops = 0;
  for (const auto& run : program.order) flops += sections[run.section];
  return flops;
}

void compile_variants(std::vector<Variant>& variants, const std::string& mesh,
                      const BuiltInModel& built, int64_t samples, DryRuns& traces) {
  int64_t plain_peak = 0, least_peak = 0;
  for (auto& variant : variants) {
    variant.samples = samples / variant.microbatches;
    const auto captured = capture(*built.model.module, batch_of(built, variant.samples),
                                  built.model.forward);
    auto methods = variant.methods;
    if (const auto at = methods.find("HALFWAY"); at != std::string::npos) {
      methods.replace(at, 7, std::to_string((plain_peak + least_peak) / 2));
    }
    const auto text = fmt::format(
        R"([["parallel_mode", [{}]], ["gradient_accumulation", {{"microbatches": {}}}]{}{}])", mesh,
        variant.microbatches, methods.empty() ? "" : ", ", methods);
    variant.plan = methods::make_plan(methods::from_json(methods::Json::parse(text), "bench"),
                                      {.graph = &captured.graph, .global_batch = samples});
    variant.plan = compile::fit_recompute(captured.graph, variant.plan, {}, traces);
    for (int64_t rank = 0; rank < variant.plan.mesh.size(); ++rank) {
      variant.programs.push_back(compile::compile(captured.graph, variant.plan, {}, rank, traces));
      variant.flops = std::max(variant.flops, flops_of(variant.programs.back()));
    }
    if (&variant == &variants[0]) plain_peak = variant.programs[0].peak_bytes;
    if (variant.name == "checkpoint") least_peak = variant.programs[0].peak_bytes;
  }
}

void run_variants(std::vector<Variant>& variants, const Batch& batch, int runs) {
  exec::run_ranks(
      std::ssize(variants[0].programs),
      [&](exec::Communicator& communicator) {
        at::set_num_threads(1);
        const auto rank = static_cast<size_t>(communicator.rank());
        std::vector<int64_t> all;
        for (int64_t r = 0; r < communicator.world(); ++r) all.push_back(r);
        const auto group = communicator.group("bench", all);
        std::vector<std::unique_ptr<exec::Executor>> executors;
        for (auto& variant : variants) {
          executors.push_back(std::make_unique<exec::Executor>(variant.programs[rank], communicator,
                                                               variant.plan.mesh));
          auto& executor = *executors.back();
          for (const auto& binding : executor.program().bindings) {
            if (binding.kind != Binding::Kind::parameter) continue;
            // All ranks have parts of the same weights.
            auto whole = at::ones(binding.shape);
            if (binding.shape.size() > 1 || !binding.name.ends_with("weight")) {
              auto draws = at::make_generator<at::CPUGeneratorImpl>(2);
              if (binding.shape.size() > 1) {
                whole.normal_(0, 0.02, draws);
              } else {
                whole.zero_();
              }
            }
            for (size_t d = 0; d < binding.ranges.size(); ++d) {
              whole = whole.narrow(static_cast<int64_t>(d), binding.ranges[d].begin,
                                   binding.ranges[d].length);
            }
            executor.tensor(binding).copy_(whole);
          }
        }
        for (int step = 1; step <= kWarmUp + runs; ++step) {
          for (size_t w = 0; w < variants.size(); ++w) {
            auto& variant = variants[w];
            group->run({.kind = exec::Collective::Kind::barrier});
            const auto begin = exec::now();
            executors[w]->run({.step = step,
                               .scalars = {{"lr.0", 1e-3}},
                               .data = [&](const std::string& name, int64_t m) {
                                 return batch.at(name).narrow(0, m * variant.samples,
                                                              variant.samples);
                               }});
            group->run({.kind = exec::Collective::Kind::barrier});
            const auto taken = static_cast<double>(exec::now() - begin) / 1e6;
            if (rank > 0) continue;
            variant.loss = executors[w]->tensor(Binding::Kind::result, "loss").item<double>();
            if (step > kWarmUp) variant.ms.push_back(taken);
          }
        }
      },
      {.timeout = std::chrono::minutes(2)});
}

bool print_variants(const std::vector<Variant>& variants) {
  bool good = true;
  const auto& plain = variants[0];
  const double usual = median(plain.ms);
  const auto peak = [](const Variant& variant) {
    int64_t most = 0;
    for (const auto& program : variant.programs) most = std::max(most, program.peak_bytes);
    return static_cast<double>(most) / 1e6;
  };
  fmt::print(
      "| {} | step | to plain | arithmetic | overhead | peak | to plain | on the host |\n"
      "|---|---|---|---|---|---|---|---|\n",
      plain.programs.size() == 1 ? "one rank" : "two ranks");
  for (const auto& variant : variants) {
    const double time = median(variant.ms) / usual, work = variant.flops / plain.flops;
    fmt::print("| {} | {:.1f} ms | {:.3f} | {:.3f} | {:.3f} | {:.1f} MB | {:.3f} | {:.1f} MB |\n",
               variant.name, median(variant.ms), time, work, time / work, peak(variant),
               peak(variant) / peak(plain),
               static_cast<double>(variant.programs[0].host_bytes) / 1e6);
    if (std::abs(variant.loss - plain.loss) > variant.tolerance * std::abs(plain.loss)) {
      fmt::print(stderr, "{}: the loss is {}, plain {}\n", variant.name, variant.loss, plain.loss);
      good = false;
    }
  }
  fmt::print("\n");
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t samples = argc > 1 ? std::atoll(argv[1]) : 8;
  const int runs = argc > 2 ? std::atoi(argv[2]) : 10;
  at::set_num_threads(1);
  const auto job = job::Job::parse(kJob, "methods.toml");
  const auto built = make_model(job.model, job.data.sequence);
  const std::string accumulate = R"(["overlap", {"accumulate": true}])";
  std::vector<Variant> one = {
      {"plain", ""},
      {"checkpoint", R"(["checkpoint", ["blocks.*"]])"},
      {"checkpoint, a budget halfway", R"(["checkpoint", {"1": "blocks.*", "memory": HALFWAY}])"},
      {"amp_native bfloat16", R"(["amp_native", {"dtype": "bfloat16"}])", 1, 2e-2},
      {"half bfloat16", R"(["half", {"dtype": "bf16"}])", 1, 2e-2},
      {"offload, activations of 3 blocks", R"(["offload", {"layers": 3}])"},
      {"offload, optimizer state", R"(["offload", {"optimizer": true}])"},
      {"4 microbatches", "", 4},
      {"4 microbatches, overlap accumulate", accumulate, 4}};
  std::vector<Variant> two = {
      {"data parallel", ""},
      {"zero1", R"(["zero1", {}])"},
      {"zero2", R"(["zero2", {}])"},
      {"fsdp", R"(["fsdp", {}])"},
      {"fsdp, cpu_offload", R"(["fsdp", {"cpu_offload": true}])"},
      {"overlap step", R"(["grad_comm", {"bucket_mb": 1}], ["overlap", {"step": true}])"}};
  std::vector<Variant> tensor = {
      {"tensor parallel", R"(["tensor_parallel", {}])"},
      {"overlap in 2 slices", R"(["tensor_parallel", {}], ["overlap", {"slices": 2}])"},
      {"sequence", R"(["tensor_parallel", {"sequence": true}])"},
      {"sequence, overlap in 2 slices",
       R"(["tensor_parallel", {"sequence": true}], ["overlap", {"slices": 2}])"}};
  std::vector<Variant> context = {
      {"context parallel, all_gather", R"(["context_parallel", {}])"},
      {"all_gather, no load_balance", R"(["context_parallel", {"load_balance": false}])"},
      {"ring", R"(["context_parallel", {"attention": "ring"}])"},
      {"all_to_all", R"(["context_parallel", {"attention": "all_to_all"}])"}};
  const auto batch = batch_of(built, samples);
  DryRuns traces;
  bool good = true;
  for (auto [variants, mesh] :
       {std::pair(&one, R"(["data", 1])"), std::pair(&two, R"(["data", 2])"),
        std::pair(&tensor, R"(["tensor", 2])"), std::pair(&context, R"(["context", 2])")}) {
    compile_variants(*variants, mesh, built, samples, traces);
    run_variants(*variants, batch, runs);
    good = print_variants(*variants) && good;
  }
  return good ? 0 : 1;
}
