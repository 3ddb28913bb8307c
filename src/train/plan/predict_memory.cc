#include "train/plan/predict_memory.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "checkpoint/holdings.h"
#include "simulate/memory_kinds.h"
#include "train/measure/product_ways.h"
#include "train/step/step_spec.h"
#include "view/run_format.h"

namespace perigee::train {
namespace {

// Notes the largest sum of an op's allocations among ops whose traces are incomplete: while such an op
// runs, its results exist beside their planned places.
class FreeAllocations : public compile::TraceSource {
 public:
  explicit FreeAllocations(compile::TraceSource& traces) : traces_(traces) {}
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    auto trace = traces_.find(instance);
    if (trace && !trace->complete) {
      most_ = std::max(
          most_, std::accumulate(trace->allocations.begin(), trace->allocations.end(), int64_t{0}));
    }
    return trace;
  }
  int64_t most() const { return most_; }

 private:
  compile::TraceSource& traces_;
  int64_t most_ = 0;
};

}  // namespace

compile::Programs predict(plan::Plan& plan, const graph::Graph& graph, const job::Job& job,
                          compile::TraceSource& traces, cost::Measurements* times) {
  const auto before = plan.prediction;
  const auto spec = step_spec(job, graph);
  FreeAllocations noting(traces);
  plan = compile::fit_recompute(graph, std::move(plan), spec, noting);
  auto programs = compile::compile_all(graph, plan, spec, noting);
  if (times && take_faster_ways(plan, programs, *times)) {
    programs = compile::compile_all(graph, plan, spec, noting);
  }
  plan.prediction = compile::predict_memory(programs);
  for (auto& peak : plan.prediction.peak_bytes) peak += noting.most();
  plan.prediction.step_seconds = before.step_seconds;
  plan.prediction.measured_share = before.measured_share;
  return programs;
}

std::string memory_json(const compile::Programs& programs) {
  std::vector<std::vector<double>> of_program, of_rank(programs.ranks.size());
  for (const auto& program : programs.programs) {
    auto& bytes = of_program.emplace_back();
    for (const auto& kind : simulate::memory_by_kind(program)) bytes.push_back(kind.bytes);
  }
  for (size_t position = 0; position < programs.ranks.size(); ++position) {
    of_rank[static_cast<size_t>(programs.ranks[position])] =
        of_program[static_cast<size_t>(programs.program[position])];
  }
  return nlohmann::json{
             {"format", view::kRunFormat}, {"kinds", simulate::memory_kinds()}, {"ranks", of_rank}}
             .dump() +
         "\n";
}

bool copies_checkpoints(const job::Job& job) {
  const auto every = job.train.checkpoint_every;
  return every > 0 && every < job.train.steps && !job.train.forward_only;
}

std::vector<int64_t> checkpoint_copies(const compile::Programs& programs, const plan::Plan& plan,
                                       const graph::Graph& graph, const job::Job& job) {
  if (!copies_checkpoints(job)) return {};
  const auto holdings = checkpoint::all_holdings(programs.programs.front(), graph, plan,
                                                 step_spec(job, graph), job.train.checkpoint_every);
  return checkpoint::bytes_by_owner(holdings, plan.mesh.size());
}

}  // namespace perigee::train
