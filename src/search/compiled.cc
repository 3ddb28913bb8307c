#include "search/compiled.h"

#include "methods/method.h"
#include "search/space/memory_model.h"

namespace perigee::search {

const graph::Graph& graph_of(const Choice& choice, const Request& request) {
  return request.graph(choice.micro * choice.batch());
}

Compiled compile_candidate(Candidate& candidate, const Request& request, const graph::Graph& graph,
                           compile::TraceSource& traces) {
  methods::PlanRequest asked;
  asked.graph = &graph;
  asked.global_batch = request.global_batch;
  asked.world = request.world;
  asked.eight_bits = request.eight_bits;
  asked.sharing_ranks = request.sharing_ranks;
  asked.world_given = true;
  const auto strategy = methods::from_json(candidate.strategy, "auto", request.defined);
  Compiled made;
  made.plan = methods::make_plan(strategy, asked);
  plan::verify(made.plan, graph);
  const auto spec = request.spec(graph);
  made.plan = compile::fit_recompute(graph, std::move(made.plan), spec, traces);
  made.programs = compile::compile_all(graph, made.plan, spec, traces);
  made.plan.prediction = compile::predict_memory(made.programs);
  candidate.peak_bytes = peak_bytes(request.pins.model, made.programs, made.plan,
                                    made.plan.prediction);
  return made;
}

}  // namespace perigee::search
