// From graph + plan to one rank's program.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compile/program.h"
#include "compile/trace.h"
#include "graph/graph.h"
#include "optim/optimizers.h"
#include "plan/plan.h"

namespace perigee::compile {

// Parameters with options of their own. Their learning rate is the scalar "lr.G", which the host
// writes, and so is their weight decay, "weight_decay.G", where it varies.
struct OptimizerGroup {
  std::vector<std::string> parameters;
  std::optional<double> weight_decay;
  // For an optimizer that leaves some parameters to another one (optim::Description::others):
  // whether the other one updates these. Nothing: it updates embeddings, heads and parameters that
  // are not matrices.
  std::optional<bool> others;
};

inline constexpr const char* kNoOptimizer = "none";

// The use of the gradients in a step.
struct StepSpec {
  // A name of optim/all.h, or kNoOptimizer: gradients are results, named "gradient:PARAM".
  std::string optimizer = "adamw";
  optim::Options options;  // attributes of the optimizer, where they are not its fallbacks
  double weight_decay = 0;
  bool weight_decay_varies = false;    // the host writes it before each step
  std::vector<OptimizerGroup> groups;  // a parameter in none of them is in the default group 0
  std::optional<double> clip_norm;     // global norm of the averaged gradients
  std::vector<std::string> frozen;     // parameters that are not trained

  bool evaluation = false;  // forward only: loss and results; no gradients, no new buffer values
  bool borrow_weights = false;  // evaluation: parameters and buffers are another program's
  // A step whose loss or gradients are not finite, or whose loss or gradient norm is above the
  // scalars "most_loss" and "most_norm", changes nothing (perigee::examine_step_).
  bool guarded = false;
  std::vector<std::string> results;  // to keep, by name; empty with several microbatches
};

// Returns the description of the optimizer, or nullptr for kNoOptimizer and unknown names.
const optim::Description* optimizer_of(const StepSpec& spec);

// Returns the names of the states that an elementwise optimizer keeps for each parameter it trains,
// of the parameter's shape. Bindings are named "STATE:PARAM". States of other optimizers differ by
// parameter (compile/gradients/tensor_step.h) and are not listed here.
std::vector<std::string> optimizer_states(const StepSpec& spec);

// Returns the program of `rank`, from a plan that fits the graph (plan::verify). Throws Error when
// a parameter named in `spec` does not exist, a loss that is neither a mean nor a sum over samples
// is cut into microbatches, or an op has no layout rule.
Program compile(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec,
                int64_t rank, TraceSource& traces);

// The programs of all ranks. Ranks share a program if they differ only in the pieces of tensors
// that they hold and, with stages of unequal submeshes, in the peers of their messages.
struct Programs {
  std::vector<Program> programs;  // each compiled for the first rank that runs it
  std::vector<int64_t> ranks;     // in mesh order
  std::vector<int32_t> program;   // of each of them: index into `programs`
  // With stages of unequal submeshes, by position: the rank's streams, by those of its program.
  // Empty: all ranks have their programs' own.
  std::vector<std::map<Stream, Stream>> renamed;
  const Program& of(size_t position) const { return programs[program[position]]; }
  // Returns the streams as the rank at that position has them.
  std::vector<Stream> streams_of(size_t position) const;
};

// Compiles each distinct program. Ranks are distinguished without making each rank's graph: by
// their stage, by the lengths of unevenly cut tensors, and by whether they are the first on an axis
// where first ranks do more; with stages of unequal submeshes also by the boxes that they send
// and receive.
Programs compile_all(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec,
                     TraceSource& traces);

// Returns the predicted peak of every rank, in mesh order.
plan::Prediction predict_memory(const Programs& programs);
// Does the same for compile_all's programs.
plan::Prediction predict_memory(const graph::Graph& graph, const plan::Plan& plan,
                                const StepSpec& spec, TraceSource& traces);

// Returns the plan with the cheapest subset of its recompute regions for which no rank needs more
// than Recompute::budget_bytes, and a decision that states its cost; a plan without a budget is
// returned unchanged. With a pipeline each stage has a subset of its own. Candidates are the
// Pareto-optimal subsets (recomputed arithmetic, saved bytes), cheapest first; compiling confirms
// that the chosen one fits and the next cheaper one does not. Throws Error naming rank and missing
// bytes where recomputing all regions is not enough.
plan::Plan fit_recompute(const graph::Graph& graph, plan::Plan plan, const StepSpec& spec,
                         TraceSource& traces);

// Returns the graph with the types that its values have under the plan's precision.
graph::Graph as_computed(graph::Graph graph, const plan::Plan& plan);

// A source without traces: ops are assumed to allocate only their results. For planning without a
// recorded profile (memory is then an estimate) and for tests.
class NoTraces : public TraceSource {
 public:
  std::optional<OpTrace> find(const OpInstance&) override { return std::nullopt; }
};

}  // namespace perigee::compile
