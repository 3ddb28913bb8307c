// Time of the search for a plan: GPT-3 of 175 billion parameters on 1,024 H100, over all sizes of
// tensor, pipe and data axes, microbatches, ZeRO levels, schedules and shares of recomputed blocks.
// "Proof" is the time from the captured graph to the proven optimum of the modelled space; the rest
// of `perigee plan` is capture, and compiling and simulating the best plans.
//
// Usage: bench_plan [RUNS], in the source folder. Exits with 1 if the proof takes more than
// 0.25 s.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "capture/models/models.h"
#include "cost/cluster.h"
#include "exec/tensor.h"
#include "search/search.h"
#include "tools/bench/median.h"
#include "train/plan/make_plan.h"
#include "train/step/step_spec.h"

using namespace perigee;

namespace {

using bench::median;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr const char* kJob = R"([model]
kind = "gpt"
layers = 96
width = 12288
heads = 96
vocab = 51200
dtype = "bfloat16"
[data]
synthetic = true
sequence = 2048
[batch]
global = 1536
)";

}  // namespace

int main(int argc, char** argv) {
  const int runs = argc > 1 ? std::atoi(argv[1]) : 5;
  const auto job = job::Job::parse(kJob, "gpt3.toml");
  const auto cluster = cost::load_cluster("runtime/clusters/128x8xh100.toml");
  std::vector<double> captures, proofs, finds;
  size_t combinations = 0;
  double best = 0, taken = 0;
  for (int i = 0; i < runs; ++i) {
    auto built = make_model(job.model, job.data.sequence);
    Batch example;
    for (const auto& field : built.batch) {
      auto shape = field.shape;
      shape.insert(shape.begin(), 1);
      example[field.name] = at::empty(
          shape, at::TensorOptions().device(at::kMeta).dtype(exec::scalar_type(field.dtype)));
    }
    const ModelSource source(built.model.module, example, built.model.forward);
    const double begin = now();
    search::Request request;
    request.graph = [&](int64_t samples) -> const graph::Graph& {
      return source.at(samples).graph;
    };
    request.spec = [&](const graph::Graph& graph) { return train::step_spec(job, graph); };
    request.global_batch = job.batch.global;
    request.world = cluster.ranks();
    source.at(8);  // the first microbatch size of the search, of 1,536 samples
    captures.push_back(now() - begin);
    cost::NoMeasurements none;
    compile::NoTraces traces;
    const double captured = now();
    best = search::candidates(request, cluster, none, traces, 1).front().estimate.seconds;
    proofs.push_back(now() - captured);
    const double searched = now();
    const auto found = search::find(request, cluster, none, traces);
    finds.push_back(now() - searched);
    combinations = found.combinations;
    taken = found.best.seconds;
  }
  fmt::print(
      "{} combinations, the model's optimum {:.4g} s a step, the plan taken {:.4g} s by the "
      "simulator\ncapture {:.3f} s, proof {:.3f} s (goal 0.25), search with compiled and simulated "
      "plans {:.3f} s; medians of {} runs\n",
      combinations, best, taken, median(captures), median(proofs), median(finds), runs);
  return median(proofs) <= 0.25 ? 0 : 1;
}
