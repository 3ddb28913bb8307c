// Input of the passes that make a draft.
#pragma once

#include <cstdint>
#include <vector>

#include "compile/compile.h"
#include "compile/stages/stage.h"
#include "graph/graph.h"
#include "plan/units.h"
#include "shard/loss/classify_loss.h"
#include "shard/partition.h"

namespace perigee::compile {

// The nodes of a section: a whole microbatch, or the forward pass, backward pass or weight
// gradients of a pipeline's part.
struct MicroSection {
  SectionRole role;
  std::vector<graph::NodeId> nodes;
};

struct Source {
  const graph::Graph& whole;
  const shard::LocalGraph& local;
  const plan::Plan& plan;
  const StepSpec& spec;
  const std::vector<plan::FlatUnit>& flats;  // of the plan's units, on this rank
  int64_t rank = 0;
  const std::vector<MicroSection>& sections;
  const Stage* stage = nullptr;  // of a pipeline
  shard::LossKind loss = shard::LossKind::mean;
  const StageTransfers* transfers = nullptr;  // of stages of unequal submeshes

  // Returns the section that makes the value; the last one for values that no node makes.
  size_t section_of(graph::ValueId v) const;
};

}  // namespace perigee::compile
