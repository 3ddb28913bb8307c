// One stage of a pipeline: the parts of the local graph that a rank runs, what it sends and
// receives, and in which order it runs them (plan::Pipeline).
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cost/schedule.h"
#include "plan/plan.h"
#include "shard/partition.h"

namespace perigee::compile {

// Returns the plan's schedule; one op a microbatch and stage where `evaluation` is set: the forward
// pass alone. Throws Error for a schedule that does not exist for the plan's counts.
Schedule schedule_of(const plan::Plan& plan, bool evaluation);

// The ranks of a stream of a program: of axes ("data,context"), of a channel from stage S to stage
// T of an axis ("pipe:S>T/A>B": what part A sends to part B), sender first, or of some of an axis's
// stages ("pipe:S,T").
std::vector<int64_t> ranks_of(const mesh::Mesh& mesh, const std::string& stream, int64_t rank);

// A rank's graph, cut.
struct Stage {
  int64_t index = 0;       // position on the axis
  std::vector<int> parts;  // that it runs, ascending
  // What it runs as a whole for a microbatch, in the order of one microbatch, and by node of the
  // graph which of them it belongs to; the graph's nodes stand in that order.
  struct Section {
    int part = 0;
    PipelineKind kind = PipelineKind::forward;
  };
  std::vector<Section> sections;
  std::vector<int> section;
  std::map<int, int64_t> copies;  // of its parts' frames: copies_of_parts
  // Parameters that several stages have, and those stages. Each adds up the gradient that it makes;
  // the first one counts in the gradients' norm.
  std::map<std::string, std::vector<int64_t>> shared;
};

// Leaves in the local graph what the rank's stage runs: sends and receives stand for what crosses
// between stages, in the order in which both ends come to it; inputs that no part of the stage uses
// go, and outputs that it does not make have no value. In training, what no part uses stays on the
// first stage.
Stage cut_stage(shard::LocalGraph& local, const plan::Plan& plan, const Schedule& schedule,
                int64_t rank);

// Which stages have each parameter, buffer, constant and data input of a whole graph. The plan is
// kept by reference. Without a pipeline every rank has all.
class StageInputs {
 public:
  StageInputs(const graph::Graph& graph, const plan::Plan& plan);
  bool has(const std::string& name, int64_t rank) const;
  // Returns the graph without nodes and with those inputs alone that no other stage than the rank's
  // has: what units may cut. All of them without a pipeline.
  graph::Graph own(const graph::Graph& graph, int64_t rank) const;

 private:
  const plan::Plan& plan_;
  std::map<std::string, std::set<int64_t>> stages_;  // by name
};

}  // namespace perigee::compile
