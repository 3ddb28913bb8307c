// What the tests of this folder share: graphs made by hand, and traces that are made up.
#pragma once

#include <cstdint>
#include <string>

#include "compile/compile.h"
#include "graph/graph.h"
#include "plan/plan.h"

namespace perigee::compile {

struct MlpShape {
  int64_t layers = 2;
  int64_t batch = 8;
  int64_t width = 16;
};

// x -> (linear with bias, gelu) x layers -> mean squared error against `target`, with its backward:
// parameters "layer.K.weight" and "layer.K.bias". Every weight gradient is a product behind two
// transposes, every bias gradient a sum behind a reshape, as LibTorch's autograd makes them.
graph::Graph mlp(MlpShape shape);

// A plan for the graph over `data` ranks.
plan::Plan data_parallel(const graph::Graph& graph, int64_t ranks, int64_t microbatches = 1);

// Traces in which every op allocates its results, and some a temporary before or after them.
class MadeUpTraces : public TraceSource {
 public:
  std::optional<OpTrace> find(const OpInstance& instance) override;
  int asked = 0;
};

// Returns the section of that name. Throws Error where there is none.
const Section& section(const Program& program, const std::string& name);

// Returns how many instructions of a section run this op.
int count(const Section& section, const std::string& op);

}  // namespace perigee::compile
