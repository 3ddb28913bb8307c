// The event simulator: runs one optimizer step of compiled programs on a cluster, instruction by
// instruction, and says when everything would happen.
//
// A rank has a compute stream, which runs its instructions one after the other, and a stream for
// each group it communicates in, which carries collectives in the order in which they start. A
// collective begins when all its ranks have come to it and their streams are free, and takes as
// long as it would alone while the busiest of its links carries nothing else of that rank; links
// share their bandwidth evenly. What runs once a step (the optimizer, gradients' reduction) is in
// the programs once and is counted once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/program.h"
#include "compile/timeline.h"
#include "mesh/mesh.h"
#include "search/op_cost.h"

namespace perigee::search {

// What ran on one program.
struct RankTime {
  int64_t rank = 0;
  int64_t alike = 1;            // how many ranks of the mesh run this program
  double end = 0;               // its last instruction
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
  double step_seconds = 0;    // the last end
  double bubble_ratio = 0;    // 1 - compute / step, over all ranks
  double measured_share = 0;  // of the seconds of ops and collectives that were measured; 0: all is
                              // an estimate
  std::vector<RankTime> ranks;
  std::vector<std::vector<compile::Interval>> intervals;  // like ranks, where asked for
  std::vector<std::vector<SectionRun>> runs;              // the same
};

struct SimulateOptions {
  bool intervals = false;
  bool runs = false;
  // On meshes of more ranks than this, those of one stage are taken for alike: the first, whose
  // parts of unevenly cut tensors are the longest, stands for all, with the slowest group of each
  // stream.
  int64_t most_ranks = 64;
  std::string stage_axis;  // of a pipeline (plan::Pipeline::axis); "": there is one stage
};

// Simulates the step. Ranks that run one program and meet the same ones are simulated once. Throws
// Error (failed) where the programs wait for each other for ever.
Simulation simulate(const compile::Programs& programs, const mesh::Mesh& mesh, OpCosts& costs,
                    const SimulateOptions& options = {});

// Returns the intervals as Chrome trace events.
std::string chrome_trace(const Simulation& simulation, const compile::Programs& programs);

}  // namespace perigee::search
