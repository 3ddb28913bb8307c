// Shared memory against Gloo between processes of one host, in the same run: the time of an
// all-reduce of float32 sums through Group, and of a data-parallel training step of a GPT. Medians
// of interleaved runs; "work" is the time of cores, of all ranks, each of which is on one core. Exits
// with 1 if a sum is wrong or losses differ.
//
// Usage: bench_comm [RANKS] [ROUNDS]; default 2 ranks, 20 rounds. Goals with 2 ranks: 128 MB at 6
// times Gloo's rate, 4 KB in at most 3 us. With 4 ranks or more the halves of the ranks then take
// themselves for ranks of two hosts, and a group over both is compared with Gloo.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "capture/models/models.h"
#include "compile/compile.h"
#include "exec/executor.h"
#include "exec/memory/dry_run.h"
#include "tools/bench/gpt.h"
#include "tools/bench/ranks.h"

namespace {

using namespace perigee;
using compile::Binding;
using exec::Collective;
using Carrier = exec::ProcessOptions::Carrier;

constexpr int64_t kSamples = 4;  // of a step, on all ranks

struct Setting {
  int64_t rank, ranks, rounds;
};

// One of the two communicators, and its device.
struct Side {
  std::string name;
  std::unique_ptr<exec::Communicator> communicator;
  std::shared_ptr<exec::SharedMemory> memory;
  std::shared_ptr<exec::Group> group = nullptr;
};

Side side(const Setting& s, const Listener& listener, Carrier carrier) {
  const bool shares = carrier != Carrier::gloo;
  auto memory = shares ? exec::SharedMemory::open() : nullptr;
  const std::string host = carrier == Carrier::automatic ? (s.rank < s.ranks / 2 ? "a" : "b") : "";
  Side made{shares ? "shared memory" : "Gloo",
            bench::connect(s.rank, s.ranks, listener, carrier, memory, host), memory};
  std::vector<int64_t> all(static_cast<size_t>(s.ranks));
  std::iota(all.begin(), all.end(), 0);
  made.group = made.communicator->group("bench", all);
  return made;
}

struct Times {
  std::vector<double> wall, work;
};

// Appends the microseconds of one all-reduce: the mean of `repeats` in a row.
void reduce(exec::Group& group, const at::Tensor& x, int64_t repeats, Times& times) {
  group.run({.kind = Collective::Kind::barrier});
  const auto work = bench::worked();
  const auto begin = exec::now();
  for (int64_t i = 0; i < repeats; ++i) {
    group.run({.kind = Collective::Kind::all_reduce, .input = x, .output = x});
  }
  const auto count = static_cast<double>(repeats);
  times.wall.push_back(static_cast<double>(exec::now() - begin) / 1e3 / count);
  times.work.push_back(1e6 * (bench::worked() - work) / count);
}

// Compares the first side, whose operands lie in its memory or elsewhere, with the second.
bool all_reduces(const Setting& s, const Side& shared, const Side& gloo, const std::string& name) {
  bool good = true;
  for (const int64_t bytes : {4L << 10, 64L << 10, 1L << 20, 16L << 20, 128L << 20}) {
    const int64_t elements = bytes / 4, repeats = std::max<int64_t>(1, (2 << 20) / bytes);
    const auto frame = exec::cpu_device(shared.memory)->allocate(bytes, true);
    const auto in_frame = at::from_blob(frame.get(), {elements}, at::kFloat);
    const auto elsewhere = at::empty({elements});
    Times of_shared, of_copies, of_gloo, warm_up;
    for (int64_t round = 0; round < s.rounds + 2; ++round) {
      const auto run = [&](const Side& one, const at::Tensor& x, Times& times) {
        x.fill_(1);
        reduce(*one.group, x, repeats, round < 2 ? warm_up : times);
        const auto sum = std::pow(static_cast<double>(s.ranks), static_cast<double>(repeats));
        good &= !std::isfinite(static_cast<float>(sum)) ||
                x.eq(static_cast<float>(sum)).all().item<bool>();
      };
      run(shared, in_frame, of_shared);
      run(shared, elsewhere, of_copies);
      run(gloo, elsewhere, of_gloo);
    }
    const auto work = [&](const Times& times) {
      return bench::sum(*gloo.group, median(times.work));
    };
    const double shared_work = work(of_shared), copies_work = work(of_copies),
                 gloo_work = work(of_gloo);
    if (s.rank == 0) {
      const auto of = [](const Times& times, double worked) {
        return fmt::format("{:.1f} (least {:.1f}, work {:.1f})", median(times.wall),
                           *std::min_element(times.wall.begin(), times.wall.end()), worked);
      };
      fmt::print(
          "all-reduce of {} KB, us: {} {}, with copies {}, Gloo {}; ratio {:.1f}, of work {:.1f}\n",
          bytes >> 10, name, of(of_shared, shared_work), of(of_copies, copies_work),
          of(of_gloo, gloo_work), median(of_gloo.wall) / median(of_shared.wall),
          gloo_work / shared_work);
    }
  }
  return good;
}

bool steps(const Setting& s, std::vector<Side>& sides) {
  const auto job = job::Job::parse(bench::kLargeGpt, "comm.toml");
  const auto built = make_model(job.model, job.data.sequence);
  const auto batch = batch_of(built, kSamples);
  const auto captured = capture(*built.model.module, batch, built.model.forward);
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(captured.graph);
  plan.mesh.axes = {{"data", s.ranks}};
  DryRuns traces;
  std::vector<std::unique_ptr<exec::Executor>> executors;
  for (auto& one : sides) {
    executors.push_back(std::make_unique<exec::Executor>(
        compile::compile(captured.graph, plan, {.clip_norm = 1}, s.rank, traces), *one.communicator,
        plan.mesh, exec::ExecutorOptions{.device = exec::cpu_device(one.memory)}));
    auto draws = at::make_generator<at::CPUGeneratorImpl>(2);
    for (const auto& name : executors.back()->names(Binding::Kind::parameter)) {
      auto weights = executors.back()->tensor(Binding::Kind::parameter, name);
      if (weights.dim() > 1) weights.normal_(0, 0.02, draws);
      if (weights.dim() == 1 && name.ends_with("weight")) weights.fill_(1);
    }
  }
  std::vector<std::vector<double>> ms(sides.size()), waited(sides.size()), work(sides.size());
  bool good = true;
  for (int64_t step = 1; step <= s.rounds + 2; ++step) {
    std::vector<double> losses;
    for (size_t i = 0; i < sides.size(); ++i) {
      sides[i].group->run({.kind = Collective::Kind::barrier});
      const auto worked_before = bench::worked();
      const auto begin = exec::now();
      executors[i]->run({.step = step,
                         .scalars = {{"lr.0", 1e-3}},
                         .data = [&](const std::string& name, int64_t) { return batch.at(name); }});
      const auto taken = static_cast<double>(exec::now() - begin) / 1e6;
      losses.push_back(executors[i]->tensor(Binding::Kind::result, "loss").item<double>());
      if (step <= 2) continue;
      ms[i].push_back(taken);
      work[i].push_back(1e3 * (bench::worked() - worked_before));
      waited[i].push_back(static_cast<double>(executors[i]->step_times().waited) / 1e6);
    }
    good &= std::abs(losses[0] - losses[1]) < 1e-3 * std::abs(losses[1]);
  }
  std::vector<double> all_work;
  for (const auto& of_side : work) all_work.push_back(bench::sum(*sides[0].group, median(of_side)));
  if (s.rank == 0) {
    for (size_t i = 0; i < sides.size(); ++i) {
      fmt::print(
          "GPT step on {} ranks, {:13}: {:6.1f} ms, works {:6.1f} ms, waits {:6.1f} ms, "
          "ratio {:.3f}\n",
          s.ranks, sides[i].name, median(ms[i]), all_work[i], median(waited[i]),
          median(ms[1]) / median(ms[i]));
    }
  }
  return good;
}

bool run_rank(const Setting& s, const std::vector<Listener>& listeners) {
  std::vector<Side> sides;
  sides.push_back(side(s, listeners[0], Carrier::shared));
  sides.push_back(side(s, listeners[1], Carrier::gloo));
  bool sums = all_reduces(s, sides[0], sides[1], sides[0].name);
  if (s.ranks >= 4) {
    const auto over_hosts = side(s, listeners[2], Carrier::automatic);
    sums &= all_reduces(s, over_hosts, sides[1], "over two hosts");
    over_hosts.group->run({.kind = Collective::Kind::barrier});
  }
  const bool losses = steps(s, sides);
  for (auto& one : sides) one.group->run({.kind = Collective::Kind::barrier});
  return sums && losses;
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t ranks = argc > 1 ? std::atoll(argv[1]) : 2;
  const int64_t rounds = argc > 2 ? std::atoll(argv[2]) : 20;
  std::vector<Listener> listeners;
  for (int i = 0; i < 3; ++i) listeners.push_back(listen_at("127.0.0.1", 0, false));
  const bool good = bench::run_ranks(ranks, [&](int64_t rank) {
    return run_rank({rank, ranks, rounds}, listeners);
  });
  return good ? 0 : 1;
}
