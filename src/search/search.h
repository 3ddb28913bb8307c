// The search behind the strategy "auto": the sizes of the mesh's axes, microbatches, schedule, ZeRO
// level and recomputation with the least step time that memory allows.
//
// Every combination has a lower bound from its layers' tables; they are looked at from the lowest
// on, each with its best cut of the blocks into stages, until no bound is below the best: the
// optimum of the model, as far as cuts are (Model::estimate); Found::lower_bound holds for all
// cuts. The best few are then compiled, and the simulator and the programs' own
// memory decide between them; where it contradicts the model for one kind of plan, others of that
// kind are expected to be off as much. While no program fits, combinations are ranked again by
// that.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "methods/method.h"
#include "plan/plan.h"
#include "search/model.h"
#include "search/simulate.h"

namespace perigee::search {

struct Request {
  // Returns the model's graph captured for so many samples; it lives until the next call.
  std::function<const graph::Graph&(int64_t samples)> graph;
  // Returns what a step does with the gradients of such a graph.
  std::function<compile::StepSpec(const graph::Graph&)> spec;
  int64_t global_batch = 1;
  int64_t world = 1;
  bool eight_bits = false;  // methods::Request::eight_bits
  Pins pins;
  std::vector<std::shared_ptr<const methods::Method>> defined;  // that the pins' methods may name
  double memory_limit = 0;  // bytes a rank may use; 0: the least memory of the cluster, less what
                            // libraries take (kReserve). Pins may lower it
  double seconds_for_more = 0;  // where none fits: how long to look with more memory, to say how
                                // much is missing; 0: by what was looked at
  size_t most_judged = 32;  // plans that are compiled and simulated; fewer where the graph is large
};

// The share of a device's memory that is left to libraries (NCCL, cuBLAS, the CUDA context).
inline constexpr double kReserve = 0.08;

// A combination that was looked at.
struct Candidate {
  Choice choice;
  nlohmann::json strategy;  // as plain data (methods::from_json)
  Estimate estimate;
  // Judged: what its programs take.
  bool judged = false;
  double seconds = 0;     // by the simulator
  double peak_bytes = 0;  // of its programs
  std::string refused;    // why it could not be compiled, or does not fit after all
  bool lacks = false;     // refused, because it does not fit
};

struct Found {
  plan::Plan plan;  // with its prediction, and why as decisions
  Candidate best;
  std::vector<Candidate> others;  // in the model's order, at least those that were judged
  double lower_bound = 0;         // of the model: no combination takes less, however it is cut
  size_t combinations = 0;        // how many there are
  size_t looked_at = 0;           // of them: cut into stages
  std::vector<Choice> all;        // the combinations
  bool stopped = false;           // by the time limit: `combinations` are those that it had come to
  Simulation simulation;
  std::string bound_by;  // "compute", "tensor", ... what takes most of the winner's time
};

// Returns the best plan. Throws Error: infeasible where no combination fits, saying which needs the
// least memory and how much is missing; invalid where pins allow none.
Found find(const Request& request, const cost::Cluster& cluster, cost::Measurements& measurements,
           compile::TraceSource& traces);

// Returns the candidates of the model, best first, at most `most` of them, without judging any.
std::vector<Candidate> candidates(const Request& request, const cost::Cluster& cluster,
                                  cost::Measurements& measurements, compile::TraceSource& traces,
                                  size_t most);

}  // namespace perigee::search
