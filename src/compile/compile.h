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
  // Of an optimizer that leaves some parameters to another (optim::Description::others): whether
  // the other one updates these. Nothing: it updates embeddings, heads and all that is no matrix.
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
  std::vector<std::string>
      results;  // named results to keep; with several microbatches there may be none
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

// The programs of all ranks: one for those that differ in nothing but which piece of a tensor they
// hold and, with stages of unequal submeshes, with whom they exchange messages.
struct Programs {
  std::vector<Program> programs;  // each of the first rank that runs it
  std::vector<int64_t> ranks;     // in mesh order
  std::vector<int32_t> program;   // of each of them: index into `programs`
  // With stages of unequal submeshes, by position: the rank's streams, by those of its program.
  // Empty: all ranks have their programs' own.
  std::vector<std::map<Stream, Stream>> renamed;
  const Program& of(size_t position) const { return programs[program[position]]; }
  // Returns the streams as the rank at that position has them.
  std::vector<Stream> streams_of(size_t position) const;
};

// Compiles each distinct program. Ranks are told apart without looking at each: by their stage, by
// the lengths of what is cut unevenly, and by whether they are the first on an axis where first
// ranks do more; with stages of unequal submeshes also by the boxes that they send and receive.
Programs compile_all(const graph::Graph& graph, const plan::Plan& plan, const StepSpec& spec,
                     TraceSource& traces);

// Returns the predicted peak of every rank, in mesh order.
plan::Prediction predict_memory(const Programs& programs);
// The same of compile_all's programs.
plan::Prediction predict_memory(const graph::Graph& graph, const plan::Plan& plan,
                                const StepSpec& spec, TraceSource& traces);

// Returns the plan with those of its recompute regions that it takes for no rank to need more than
// Recompute::budget_bytes, and a decision that says what that costs; a plan without a budget as it
// is. With a pipeline each stage has its own. Sets of regions are tried in the order of what they
// run again, each the one that frees most for its work; the one taken is compiled and fits, and so
// is the next cheaper one, which does not. Throws Error where all regions are not enough, saying by
// how much and on which rank.
plan::Plan fit_recompute(const graph::Graph& graph, plan::Plan plan, const StepSpec& spec,
                         TraceSource& traces);

// Returns the graph with the types that its values have where the plan's precision is carried out.
graph::Graph as_computed(graph::Graph graph, const plan::Plan& plan);

// Traces of ops that allocate their results and nothing else, contiguous: for planning without a
// recorded profile (then memory is an estimate) and for tests.
class NoTraces : public TraceSource {
 public:
  std::optional<OpTrace> find(const OpInstance&) override { return std::nullopt; }
};

}  // namespace perigee::compile
