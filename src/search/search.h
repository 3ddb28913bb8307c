// The search behind the strategy "auto": the sizes of the mesh's axes, microbatches, schedule, ZeRO
// level and recomputation with the shortest step time that memory allows.
//
// Every combination has a lower bound from its layers' tables. Combinations are priced in the order
// of their bounds, each with its best cut of the blocks into stages, until no bound is below the
// best: the optimum of the model, as far as cuts are optimal (CostModel::estimate);
// Found::lower_bound holds for all cuts. The best few are then compiled, and the simulator and the
// programs' memory decide between them. Where the simulator contradicts the model for one kind of
// plan, a correction factor applies to others of that kind. While no program fits, combinations are
// ranked anew with these factors.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "methods/method.h"
#include "plan/plan.h"
#include "search/explain/features.h"
#include "search/model/cost_model.h"
#include "simulate/simulate.h"

namespace perigee::search {

struct Request {
  // Returns the model's graph captured for so many samples; valid until the next call.
  std::function<const graph::Graph&(int64_t samples)> graph;
  // Returns the optimizer step for the gradients of such a graph.
  std::function<compile::StepSpec(const graph::Graph&)> spec;
  int64_t global_batch = 1;
  int64_t world = 1;
  bool eight_bits = false;    // methods::PlanRequest::eight_bits
  int64_t sharing_ranks = 1;  // methods::PlanRequest::sharing_ranks
  Pins pins;
  std::vector<std::shared_ptr<const methods::Method>> defined;  // methods that the pins may name
  double memory_limit = 0;      // bytes a rank may use; 0: the least memory of the cluster's
                                // devices, less kReserve. Pins may lower it
  double seconds_for_more = 0;  // where none fits: for searching with more memory, to report the
                                // missing bytes; 0: from the priced combinations
  size_t most_judged = 32;  // plans that are compiled and simulated; fewer where the graph is large
};

// The share of a device's memory that is left to libraries (NCCL, cuBLAS, the CUDA context).
inline constexpr double kReserve = 0.08;

// A combination that was priced.
struct Candidate {
  Choice choice;
  nlohmann::json strategy;  // as plain data (methods::from_json)
  Estimate estimate;
  // Judged: compiled and simulated.
  bool judged = false;
  double seconds = 0;           // by the simulator
  double peak_bytes = 0;        // of its programs
  std::string refused;          // why it could not be compiled, or that its programs do not fit
  bool exceeds_memory = false;  // refused for this reason
};

struct Found {
  plan::Plan plan;  // with its prediction, and the reasons as decisions
  Candidate best;
  std::vector<Candidate> others;  // in the model's order; has all that were judged
  double lower_bound = 0;         // of the model, for all combinations and cuts
  size_t combinations = 0;        // number of combinations
  size_t looked_at = 0;           // number of those that were cut into stages
  std::vector<Choice> all;        // the combinations
  bool stopped = false;           // by the time limit: `combinations` are those enumerated so far
  // The plan was chosen among `others` by a strategy, which may leave faster ones out.
  bool chosen = false;
  Features features;  // of the combinations that were priced
  simulate::Simulation simulation;
  std::string bound_by;  // largest part of the best plan's time: "compute", ...
};

// Returns the best plan. Throws Error: infeasible where no combination fits, naming the one that
// needs the least memory and the missing bytes; invalid where pins allow none.
Found find(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
           compile::TraceSource& traces);

// Returns the candidates of the model, best first, at most `most` of them, without judging any,
// with all that explains a choice among them: Found without a plan and a best candidate.
Found rank(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
           compile::TraceSource& traces, size_t most);

// Returns the list of rank().
std::vector<Candidate> candidates(const Request& request, const cost::Cluster& cluster,
                                  cost::Measurements& measurements, compile::TraceSource& traces,
                                  size_t most);

}  // namespace perigee::search
