// A data-parallel step of a GPT of 29.4 million parameters on ranks that are processes of one host:
// every rank steps all weights (ddp), its part of its own copy (zero1 with one_copy = false), or its
// part of the host's one copy (zero1). Steps of the three interleave; each rank is on one core.
// "work" is the time of cores, of all ranks. Exits with 1 if losses differ in a bit, or a rank's
// frames are not as predicted.
//
// Usage: bench_one_copy [RANKS] [ROUNDS] [SAMPLES]; default 2 ranks, 20 rounds, 4 samples a step.
// Goal: one copy takes at most the time of ddp, and a rank less memory.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "capture/models/models.h"
#include "compile/compile.h"
#include "exec/executor.h"
#include "methods/method.h"
#include "tools/bench/gpt.h"
#include "tools/bench/median.h"
#include "tools/bench/ranks.h"

namespace {

using namespace perigee;
using compile::Binding;
using exec::Collective;

struct Setting {
  int64_t rank, ranks, rounds, samples;
};

struct Variant {
  const char* name;
  const char* strategy;
  std::unique_ptr<exec::Executor> executor = nullptr;
  std::vector<double> ms = {}, work = {};
};

bool run_rank(const Setting& s, const Listener& listener) {
  const auto memory = exec::SharedMemory::open();
  const auto communicator = bench::connect(s.rank, s.ranks, listener,
                                           exec::ProcessOptions::Carrier::shared, memory);
  std::vector<int64_t> all(static_cast<size_t>(s.ranks));
  std::iota(all.begin(), all.end(), 0);
  const auto group = communicator->group("bench", all);
  const auto job = job::Job::parse(bench::kLargeGpt, "one_copy.toml");
  const auto built = make_model(job.model, job.data.sequence);
  const auto batch = batch_of(built, s.samples);
  const auto captured = capture(*built.model.module, batch, built.model.forward);
  DryRuns traces;
  std::vector<Variant> variants;
  variants.push_back({"ddp", R"(["parallel_mode", ["grad_comm", {"bucket_mb": 1}]])"});
  variants.push_back({"zero1, copies", R"(["parallel_mode", ["zero1", {"one_copy": false}]])"});
  variants.push_back({"zero1, one copy", R"(["parallel_mode", ["zero1", {"one_copy": true}]])"});
  bool good = true;
  for (auto& variant : variants) {
    const auto plan = methods::make_plan(
        methods::from_json(methods::Json::parse(variant.strategy), "bench"),
        {.graph = &captured.graph,
         .global_batch = s.samples,
         .world = s.ranks,
         .world_given = true});
    variant.executor = std::make_unique<exec::Executor>(
        compile::compile(captured.graph, plan, {.clip_norm = 1}, s.rank, traces), *communicator,
        plan.mesh, exec::ExecutorOptions{.device = exec::cpu_device(memory)});
    const auto& executor = *variant.executor;
    good &= executor.frame_bytes() == executor.program().peak_bytes;
    auto draws = at::make_generator<at::CPUGeneratorImpl>(2);
    for (const auto& name : executor.names(Binding::Kind::parameter)) {
      auto weights = executor.tensor(Binding::Kind::parameter, name);
      if (weights.dim() > 1) weights.copy_(at::empty_like(weights).normal_(0, 0.02, draws));
      if (weights.dim() == 1 && name.ends_with("weight")) weights.fill_(1);
    }
  }
  for (int64_t step = 1; step <= s.rounds + 2; ++step) {
    std::vector<double> losses;
    for (auto& variant : variants) {
      group->run({.kind = Collective::Kind::barrier});
      const auto before = bench::worked();
      const auto begin = exec::now();
      variant.executor->run(
          {.step = step,
           .scalars = {{"lr.0", 1e-3}},
           .data = [&](const std::string& name, int64_t) { return batch.at(name); }});
      const auto taken = static_cast<double>(exec::now() - begin) / 1e6;
      losses.push_back(variant.executor->tensor(Binding::Kind::result, "loss").item<double>());
      if (step <= 2) continue;
      variant.ms.push_back(taken);
      variant.work.push_back(1e3 * (bench::worked() - before));
    }
    for (const auto loss : losses) good &= loss == losses[0];
  }
  for (const auto& variant : variants) {
    const auto work = bench::sum(*group, bench::median(variant.work));
    const auto bytes = bench::sum(*group, static_cast<double>(variant.executor->frame_bytes()));
    if (s.rank != 0) continue;
    fmt::print(
        "GPT step on {} ranks, {:15}: {:6.1f} ms (least {:.1f}), works {:6.1f} ms, all ranks hold "
        "{:.0f} MiB, time of ddp {:.3f}\n",
        s.ranks, variant.name, bench::median(variant.ms),
        *std::min_element(variant.ms.begin(), variant.ms.end()), work, bytes / (1 << 20),
        bench::median(variant.ms) / bench::median(variants[0].ms));
  }
  group->run({.kind = Collective::Kind::barrier});
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) {
    return argc > i ? std::atoll(argv[i]) : otherwise;
  };
  const Setting first{
      .rank = 0, .ranks = number(1, 2), .rounds = number(2, 20), .samples = number(3, 4)};
  const auto listener = listen_at("127.0.0.1", 0, false);
  const bool good = bench::run_ranks(first.ranks, [&](int64_t rank) {
    auto own = first;
    own.rank = rank;
    return run_rank(own, listener);
  });
  return good ? 0 : 1;
}
