// What the methods cost in time and save in memory: training steps of a GPT (4 layers, width 256)
// on ranks of this process, in float32, against plain steps (data parallel where there are two
// ranks) in the same run. Medians of interleaved steps. "arithmetic" is the ratio of what the
// programs compute, so "overhead" is time that is not arithmetic. Leaves with 1 where a loss is not
// the plain one.
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

class DryRuns : public compile::TraceSource {
 public:
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    const auto [entry, added] = known_.try_emplace(compile::key(instance));
    if (added) entry->second = exec::record_trace(instance);
    return entry->second;
  }

 private:
  std::map<std::string, std::optional<compile::OpTrace>> known_;
};

struct Way {
  std::string name, methods;  // as data, beside the mesh
  int64_t microbatches = 1;
  double tolerance = 1e-5;  // of the loss, relative
  std::vector<Program> programs = {};
  plan::Plan plan = {};
  int64_t samples = 0;  // of a microbatch over all ranks
  std::vector<double> ms = {};
  double loss = 0, flops = 0;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

// Of one step of a rank.
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

Batch batch_of(const BuiltInModel& built, int64_t samples) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  Batch batch;
  for (const auto& field : built.batch) {
    auto shape = field.shape;
    shape.insert(shape.begin(), samples);
    batch[field.name] = at::randint(0, field.classes, shape, generator, at::kLong);
  }
  return batch;
}

void compile_ways(std::vector<Way>& ways, const std::string& mesh, const BuiltInModel& built,
                  int64_t samples, DryRuns& traces) {
  int64_t plain_peak = 0, least_peak = 0;
  for (auto& way : ways) {
    way.samples = samples / way.microbatches;
    const auto captured = capture(*built.model.module, batch_of(built, way.samples),
                                  built.model.forward);
    auto methods = way.methods;
    if (const auto at = methods.find("HALFWAY"); at != std::string::npos) {
      methods.replace(at, 7, std::to_string((plain_peak + least_peak) / 2));
    }
    const auto text = fmt::format(
        R"([["parallel_mode", [{}]], ["gradient_accumulation", {{"microbatches": {}}}]{}{}])", mesh,
        way.microbatches, methods.empty() ? "" : ", ", methods);
    way.plan = methods::make_plan(methods::from_json(methods::Json::parse(text), "bench"),
                                  {.graph = &captured.graph, .global_batch = samples});
    way.plan = compile::fit_recompute(captured.graph, way.plan, {}, traces);
    for (int64_t rank = 0; rank < way.plan.mesh.size(); ++rank) {
      way.programs.push_back(compile::compile(captured.graph, way.plan, {}, rank, traces));
      way.flops = std::max(way.flops, flops_of(way.programs.back()));
    }
    if (&way == &ways[0]) plain_peak = way.programs[0].peak_bytes;
    if (way.name == "checkpoint") least_peak = way.programs[0].peak_bytes;
  }
}

void run_ways(std::vector<Way>& ways, const Batch& batch, int runs) {
  exec::run_ranks(
      std::ssize(ways[0].programs),
      [&](exec::Communicator& communicator) {
        at::set_num_threads(1);
        const auto rank = static_cast<size_t>(communicator.rank());
        std::vector<int64_t> all;
        for (int64_t r = 0; r < communicator.world(); ++r) all.push_back(r);
        const auto group = communicator.group("bench", all);
        std::vector<std::unique_ptr<exec::Executor>> executors;
        for (auto& way : ways) {
          executors.push_back(
              std::make_unique<exec::Executor>(way.programs[rank], communicator, way.plan.mesh));
          auto& executor = *executors.back();
          for (const auto& binding : executor.program().bindings) {
            if (binding.kind != Binding::Kind::parameter) continue;
            // The same weights whatever part of them a rank has.
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
          for (size_t w = 0; w < ways.size(); ++w) {
            auto& way = ways[w];
            group->run({.kind = exec::Collective::Kind::barrier});
            const auto begin = exec::now();
            executors[w]->run({.step = step,
                               .scalars = {{"lr.0", 1e-3}},
                               .data = [&](const std::string& name, int64_t m) {
                                 return batch.at(name).narrow(0, m * way.samples, way.samples);
                               }});
            group->run({.kind = exec::Collective::Kind::barrier});
            const auto taken = static_cast<double>(exec::now() - begin) / 1e6;
            if (rank > 0) continue;
            way.loss = executors[w]->tensor(Binding::Kind::result, "loss").item<double>();
            if (step > kWarmUp) way.ms.push_back(taken);
          }
        }
      },
      {.timeout = std::chrono::minutes(2)});
}

bool print_ways(const std::vector<Way>& ways) {
  bool good = true;
  const auto& plain = ways[0];
  const double usual = median(plain.ms);
  const auto peak = [](const Way& way) {
    int64_t most = 0;
    for (const auto& program : way.programs) most = std::max(most, program.peak_bytes);
    return static_cast<double>(most) / 1e6;
  };
  fmt::print(
      "| {} | step | to plain | arithmetic | overhead | peak | to plain | on the host |\n"
      "|---|---|---|---|---|---|---|---|\n",
      plain.programs.size() == 1 ? "one rank" : "two ranks");
  for (const auto& way : ways) {
    const double time = median(way.ms) / usual, work = way.flops / plain.flops;
    fmt::print("| {} | {:.1f} ms | {:.3f} | {:.3f} | {:.3f} | {:.1f} MB | {:.3f} | {:.1f} MB |\n",
               way.name, median(way.ms), time, work, time / work, peak(way),
               peak(way) / peak(plain), static_cast<double>(way.programs[0].host_bytes) / 1e6);
    if (std::abs(way.loss - plain.loss) > way.tolerance * std::abs(plain.loss)) {
      fmt::print(stderr, "{}: the loss is {}, plain {}\n", way.name, way.loss, plain.loss);
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
  std::vector<Way> one = {
      {"plain", ""},
      {"checkpoint", R"(["checkpoint", ["blocks.*"]])"},
      {"checkpoint, a budget halfway", R"(["checkpoint", {"1": "blocks.*", "memory": HALFWAY}])"},
      {"amp_native bfloat16", R"(["amp_native", {"dtype": "bfloat16"}])", 1, 2e-2},
      {"half bfloat16", R"(["half", {"dtype": "bf16"}])", 1, 2e-2},
      {"offload, activations of 3 blocks", R"(["offload", {"layers": 3}])"},
      {"offload, optimizer state", R"(["offload", {"optimizer": true}])"},
      {"4 microbatches", "", 4},
      {"4 microbatches, overlap accumulate", accumulate, 4}};
  std::vector<Way> two = {
      {"data parallel", ""},
      {"zero1", R"(["zero1", {}])"},
      {"zero2", R"(["zero2", {}])"},
      {"fsdp", R"(["fsdp", {}])"},
      {"fsdp, cpu_offload", R"(["fsdp", {"cpu_offload": true}])"},
      {"overlap step", R"(["grad_comm", {"bucket_mb": 1}], ["overlap", {"step": true}])"}};
  std::vector<Way> tensor = {
      {"tensor parallel", R"(["tensor_parallel", {}])"},
      {"overlap in 2 slices", R"(["tensor_parallel", {}], ["overlap", {"slices": 2}])"},
      {"sequence", R"(["tensor_parallel", {"sequence": true}])"},
      {"sequence, overlap in 2 slices",
       R"(["tensor_parallel", {"sequence": true}], ["overlap", {"slices": 2}])"}};
  std::vector<Way> context = {
      {"context parallel, all_gather", R"(["context_parallel", {}])"},
      {"all_gather, no load_balance", R"(["context_parallel", {"load_balance": false}])"},
      {"ring", R"(["context_parallel", {"attention": "ring"}])"},
      {"all_to_all", R"(["context_parallel", {"attention": "all_to_all"}])"}};
  const auto batch = batch_of(built, samples);
  DryRuns traces;
  bool good = true;
  for (auto [ways, mesh] :
       {std::pair(&one, R"(["data", 1])"), std::pair(&two, R"(["data", 2])"),
        std::pair(&tensor, R"(["tensor", 2])"), std::pair(&context, R"(["context", 2])")}) {
    compile_ways(*ways, mesh, built, samples, traces);
    run_ways(*ways, batch, runs);
    good = print_ways(*ways) && good;
  }
  return good ? 0 : 1;
}
