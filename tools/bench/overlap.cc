// Gain of reducing gradients during the backward pass: data-parallel steps of a GPT (4 layers,
// width 256) on two processes over Gloo and the loopback interface. Compares buckets that are
// reduced as soon as they are complete with the same buckets after the backward pass and with one
// bucket. Medians of interleaved steps. Exits with 1 if losses differ, the first variant has no
// overlap, or another one has any.
//
// Usage: bench_overlap [SAMPLES]; samples of a rank in a step, default 4.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/network/address.h"
#include "capture/models/models.h"
#include "compile/compile.h"
#include "exec/comm/gloo.h"
#include "exec/executor.h"
#include "exec/memory/dry_run.h"
#include "tools/bench/gpt.h"

namespace {

using namespace perigee;
using compile::Binding;

constexpr int64_t kWorld = 2;
constexpr int kWarmUp = 2, kRuns = 20;

struct Variant {
  const char* name;
  plan::Communication communication;
  std::unique_ptr<exec::Executor> executor = nullptr;
  std::vector<double> ms = {}, hidden = {}, busy = {};  // per step; ms of communication
  double loss = 0;
};

// Appends the milliseconds of the buckets' all-reduces, and those hidden by this rank's compute.
void measure(const std::vector<exec::Interval>& intervals, Variant& variant) {
  std::vector<exec::Interval> kept;
  double busy = 0;
  for (const auto& interval : intervals) {
    if (interval.stream > 0 && interval.bytes <= 8) continue;  // losses and norms
    if (interval.stream > 0) busy += static_cast<double>(interval.end - interval.begin) / 1e6;
    kept.push_back(interval);
  }
  variant.busy.push_back(busy);
  variant.hidden.push_back(static_cast<double>(perigee::compile::overlap(kept)) / 1e6);
}

int run_rank(int64_t rank, const Listener& listener, int64_t samples) {
  at::set_num_threads(1);
  const auto communicator = exec::gloo_communicator(
      {.port = listener.port,
       .rank = rank,
       .world = kWorld,
       .serve = rank == 0,
       .listen_socket = rank == 0 ? listener.socket : -1});
  const auto job = job::Job::parse(kJob, "overlap.toml");
  const auto built = make_model(job.model, job.data.sequence);
  const auto batch = batch_of(built, kWorld * samples);
  const auto captured = capture(*built.model.module, batch, built.model.forward);
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(captured.graph);
  plan.mesh.axes = {{"data", kWorld}};
  DryRuns traces;
  Variant variants[] = {
      {"buckets of 1 MiB, overlapped", {.bucket_bytes = 1 << 20, .overlap = true}},
      {"buckets of 1 MiB, afterwards", {.bucket_bytes = 1 << 20, .overlap = false}},
      {"one bucket", {.bucket_bytes = 1 << 30, .overlap = true}}};
  for (auto& variant : variants) {
    plan.communication = variant.communication;
    variant.executor = std::make_unique<exec::Executor>(
        compile::compile(captured.graph, plan, {.clip_norm = 1}, rank, traces), *communicator,
        plan.mesh);
    auto draws = at::make_generator<at::CPUGeneratorImpl>(2);
    for (const auto& name : variant.executor->names(Binding::Kind::parameter)) {
      auto weights = variant.executor->tensor(Binding::Kind::parameter, name);
      if (weights.dim() > 1) weights.normal_(0, 0.02, draws);
      if (weights.dim() == 1 && name.ends_with("weight")) weights.fill_(1);
    }
  }
  std::vector<int64_t> all = {0, 1};
  const auto group = communicator->group("bench", all);
  for (int step = 1; step <= kWarmUp + kRuns; ++step) {
    for (auto& variant : variants) {
      group->run({.kind = exec::Collective::Kind::barrier});
      variant.executor->record(true);
      const auto begin = exec::now();
      variant.executor->run(
          {.step = step,
           .scalars = {{"lr.0", 1e-3}},
           .data = [&](const std::string& name, int64_t) { return batch.at(name); }});
      const auto taken = static_cast<double>(exec::now() - begin) / 1e6;
      variant.loss = variant.executor->tensor(Binding::Kind::result, "loss").item<double>();
      if (step <= kWarmUp) continue;
      variant.ms.push_back(taken);
      measure(variant.executor->intervals(), variant);
    }
  }
  const double rival = median(variants[2].ms);
  bool good = true;
  for (const auto& variant : variants) {
    const double share = median(variant.hidden) / median(variant.busy);
    if (rank == 0) {
      fmt::print("{:30} step {:6.1f} ms, ratio {:.3f}; all-reduces {:5.1f} ms, {:3.0f}% hidden\n",
                 variant.name, median(variant.ms), median(variant.ms) / rival, median(variant.busy),
                 100 * share);
    }
    good &= (share > 0) == (&variant == &variants[0]);
    good &= std::abs(variant.loss - variants[2].loss) < 1e-3 * std::abs(variants[2].loss);
  }
  if (rank == 0) fmt::print("loss after {} steps: {:.6f}\n", kWarmUp + kRuns, variants[0].loss);
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t samples = argc > 1 ? std::atoll(argv[1]) : 4;
  const auto listener = listen_at("127.0.0.1", 0, false);
  // Forks before the first op: LibTorch's threads do not survive a fork.
  const pid_t child = fork();
  if (child == 0) _exit(run_rank(1, listener, samples));
  const int mine = run_rank(0, listener, samples);
  int theirs = 0;
  if (child < 0 || waitpid(child, &theirs, 0) != child) return 1;
  return mine == 0 && theirs == 0 ? 0 : 1;
}
