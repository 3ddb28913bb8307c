// A data-parallel step of a GPT of 29.4 million parameters on ranks that are processes of one host:
// every rank steps all weights (ddp), its part of its own copy (zero1 with one_copy = false), or its
// part of the host's one copy (zero1). Steps of the three interleave; each rank is on one core.
// "work" is the time of cores, of all ranks. Exits with 1 if losses differ in a bit, or a rank's
// frames are not as predicted.
//
// Usage: bench_one_copy [RANKS] [ROUNDS] [SAMPLES]; default 2 ranks, 20 rounds, 4 samples a step.
// Goal: one copy takes at most the time of ddp, and a rank less memory.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ctime>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/network/address.h"
#include "capture/models/models.h"
#include "compile/compile.h"
#include "exec/comm/shared/communicator.h"
#include "exec/executor.h"
#include "methods/method.h"
#include "tools/bench/gpt.h"
#include "tools/bench/median.h"

namespace {

using namespace perigee;
using compile::Binding;
using exec::Collective;

constexpr const char* kLargeGpt =
    "[model]\nkind = 'gpt'\nlayers = 8\nwidth = 512\nheads = 8\nvocab = 8192\n"
    "[data]\nsynthetic = true\nsequence = 64\n";

struct Setting {
  int64_t rank, ranks, rounds, samples;
};

struct Variant {
  const char* name;
  const char* strategy;
  std::unique_ptr<exec::Executor> executor = nullptr;
  std::vector<double> ms = {}, work = {};
};

// Seconds that the cores have worked for this process.
double worked() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double sum(exec::Group& group, double value) {
  auto x = at::full({1}, value, at::kDouble);
  group.run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
  return x.item<double>();
}

int run_rank(const Setting& s, const Listener& listener) {
  at::set_num_threads(1);
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(s.rank % sysconf(_SC_NPROCESSORS_ONLN), &core);
  if (sched_setaffinity(0, sizeof core, &core) != 0) return 1;
  const auto memory = exec::SharedMemory::open();
  const auto communicator = exec::process_communicator(
      {.rendezvous = {.port = listener.port,
                      .rank = s.rank,
                      .world = s.ranks,
                      .serve = s.rank == 0,
                      .listen_socket = s.rank == 0 ? listener.socket : -1},
       .carrier = exec::ProcessOptions::Carrier::shared,
       .local_ranks = s.ranks,
       .memory = memory});
  std::vector<int64_t> all(static_cast<size_t>(s.ranks));
  std::iota(all.begin(), all.end(), 0);
  const auto group = communicator->group("bench", all);
  const auto job = job::Job::parse(kLargeGpt, "one_copy.toml");
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
      const auto before = worked();
      const auto begin = exec::now();
      variant.executor->run(
          {.step = step,
           .scalars = {{"lr.0", 1e-3}},
           .data = [&](const std::string& name, int64_t) { return batch.at(name); }});
      const auto taken = static_cast<double>(exec::now() - begin) / 1e6;
      losses.push_back(variant.executor->tensor(Binding::Kind::result, "loss").item<double>());
      if (step <= 2) continue;
      variant.ms.push_back(taken);
      variant.work.push_back(1e3 * (worked() - before));
    }
    for (const auto loss : losses) good &= loss == losses[0];
  }
  for (const auto& variant : variants) {
    const auto work = sum(*group, bench::median(variant.work));
    const auto bytes = sum(*group, static_cast<double>(variant.executor->frame_bytes()));
    if (s.rank != 0) continue;
    fmt::print(
        "GPT step on {} ranks, {:15}: {:6.1f} ms (least {:.1f}), works {:6.1f} ms, all ranks hold "
        "{:.0f} MiB, time of ddp {:.3f}\n",
        s.ranks, variant.name, bench::median(variant.ms),
        *std::min_element(variant.ms.begin(), variant.ms.end()), work, bytes / (1 << 20),
        bench::median(variant.ms) / bench::median(variants[0].ms));
  }
  group->run({.kind = Collective::Kind::barrier});
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) {
    return argc > i ? std::atoll(argv[i]) : otherwise;
  };
  const Setting first{
      .rank = 0, .ranks = number(1, 2), .rounds = number(2, 20), .samples = number(3, 4)};
  const auto listener = listen_at("127.0.0.1", 0, false);
  // Forks before the first op: LibTorch's threads do not survive a fork.
  std::vector<pid_t> children;
  for (int64_t rank = 1; rank < first.ranks; ++rank) {
    children.push_back(fork());
    auto own = first;
    own.rank = rank;
    if (children.back() == 0) _exit(run_rank(own, listener));
  }
  bool good = run_rank(first, listener) == 0;
  for (const auto child : children) {
    int status = 0;
    good &= child > 0 && waitpid(child, &status, 0) == child && status == 0;
  }
  return good ? 0 : 1;
}
