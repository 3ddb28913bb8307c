// Hand-made graphs and synthetic traces.
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
// parameters "layer.K.weight" and "layer.K.bias". As in LibTorch's autograd, a weight gradient is a
// product of two transposed operands, a bias gradient a reshaped sum.
graph::Graph mlp(MlpShape shape);

// Returns a data-parallel plan for the graph.
plan::Plan data_parallel(const graph::Graph& graph, int64_t ranks, int64_t microbatches = 1);

// Traces in which every op allocates its results, and some ops a temporary before or after them.
class SyntheticTraces : public TraceSource {
 public:
  std::optional<OpTrace> find(const OpInstance& instance) override;
  int asked = 0;
};

// Compiles the program of rank 0 with synthetic traces, and verifies it.
Program compiled(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec = {});

// Returns the section with the name. Throws Error if there is none.
const Section& section(const Program& program, const std::string& name);

// Returns the number of instructions of the op in a section.
int count(const Section& section, const std::string& op);

}  // namespace perigee::compile
