// The event simulator: predicts one optimizer step of compiled programs on a cluster, instruction
// by instruction.
//
// A rank has a compute stream, which runs its instructions one after the other, and a stream for
// each group that it communicates in, which runs collectives in the order in which they start. A
// collective begins when all its ranks have started it and their streams are free. Contention:
// collectives of a rank on one network level share its bandwidth evenly; where they share the cores
// of ops (Cluster::shared_cores), ops that run beside a collective end later by its time, from where
// the rank waits for it. Instructions that run once a step (optimizer, reduction of gradients) are in
// the programs once and count once. Those of every k-th step (averages of copies) have 1/k of their
// time: the predicted step is the mean of k steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/program.h"
#include "compile/timeline.h"
#include "mesh/mesh.h"
#include "simulate/op_cost.h"

namespace perigee::simulate {

// The step of one program.
struct RankTime {
  int64_t rank = 0;
  int64_t replicas = 1;         // ranks that run this program, this one included
  double end = 0;               // of its last instruction
  double compute = 0;           // seconds in which the compute stream was busy
  double waiting = 0;           // seconds in which it waited for communication: end - compute
  std::vector<double> streams;  // busy seconds by stream of the program; [0] is compute
};

// A run of one of a program's sections for a microbatch, from its first op to the end of its last.
struct SectionRun {
  int32_t section = 0;
  int64_t microbatch = 0;
  double begin = 0, end = 0;
};

struct Simulation {
  double step_seconds = 0;  // the latest end
  double bubble_ratio = 0;  // 1 - compute / step, over all ranks
  // Share of the seconds of ops and collectives that was measured; 0: all is estimated.
  double measured_share = 0;
  std::vector<RankTime> ranks;
  // By position in `ranks`, where the options ask for them.
  std::vector<std::vector<compile::Interval>> intervals;
  std::vector<std::vector<SectionRun>> runs;
};

struct SimulateOptions {
  bool intervals = false;
  bool runs = false;
  // On meshes of more ranks, the ranks of one stage count as equivalent: the first one, whose
  // shards of unevenly cut tensors are the largest, is simulated, with the slowest group of
  // each stream.
  int64_t most_ranks = 64;
  std::string stage_axis;  // of a pipeline (plan::Pipeline::axis); "": there is one stage
};

// Simulates the step, equivalent ranks once (rank_classes). Throws Error (failed) where
// the programs deadlock.
Simulation simulate(const compile::Programs& programs, const mesh::Mesh& mesh, OpCosts& costs,
                    const SimulateOptions& options = {});

// Returns the intervals as Chrome trace events.
std::string chrome_trace(const Simulation& simulation, const compile::Programs& programs);

}  // namespace perigee::simulate
