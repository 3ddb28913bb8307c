// The passes of compile/, in the order they run (compile.cc). Each has one reason to exist.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/draft.h"
#include "graph/graph.h"
#include "shard/partition.h"

namespace perigee::compile {

// -- 1. On the whole graph
// -------------------------------------------------------------------------------------------

// Drops the outputs that the step does not want: gradients of frozen parameters, all but loss and
// results in an evaluation, results nobody asked for. The nodes stay, so that the plan's names of
// values hold; what is then unused goes from the rank's graph. Throws Error for names the graph
// lacks.
graph::Graph select_outputs(graph::Graph graph, const StepSpec& spec);

// Removes views that undo each other or do nothing (t of t, reshape of reshape, reshape to the same
// shape, detach).
graph::Graph simplify_views(graph::Graph graph);

// -- 2. On one rank's graph (shard/ has made it)
// ---------------------------------------------------------------------

// What runs for each microbatch and what runs before.
struct Microbatches {
  // A perigee::step_average node: its operand is summed over the microbatches in the prologue.
  struct Average {
    graph::NodeId node;
    graph::ValueId source;  // what is summed: the operand, or where that is an all-reduced sum,
                            // what it reduces
    std::string axes;       // reduce the average over these; "" where there is nothing to reduce
  };
  std::vector<graph::NodeId> prologue;
  std::vector<graph::NodeId> micro;
  std::vector<Average> averages;
  double factor =
      1;  // of losses and gradients in their sum over the microbatches: 1 / count for a mean loss
};

// Sorts the nodes into prologue and microbatch, and leaves out of the rank's graph what only other
// ranks need (`part`); its collectives stay. Throws Error when a step average depends on more
// than data inputs. `kind` matters for several microbatches only: a mixed loss is then an error
// that says what to change.
Microbatches cut_microbatches(graph::Graph& local, int64_t microbatches, shard::LossKind kind);

// Tells the random ops of the local graph along which dim of their tensor the step's microbatches
// follow each other
// (`batch_dim`), so that any number of microbatches draws the same. Found on the whole graph: the
// dim that would be sharded if the batch were.
void set_batch_dims(graph::Graph& local, const graph::Graph& whole);

// Runs the plan's recompute regions again where the backward pass needs their results: each
// backward op reads a copy of the forward op, made just before the first one that needs it.
graph::Graph recompute(const graph::Graph& local, const plan::Recompute& plan);

// -- 3. To a draft
// ---------------------------------------------------------------------------------------------------

// Parameters whose gradients lie side by side: reduced and stepped together.
struct Bucket {
  graph::DType dtype = graph::DType::float32;
  int32_t group = 0;  // of the optimizer
  std::string axes;   // the gradients are Partial on these; "" where none is
  std::string reduce = "sum";
  std::vector<int32_t>
      parameters;  // indices into Gradients::parameters, in the order their gradients become ready
  int64_t elements = 0;
  ValueId weights, gradients, first_state,
      second_state;  // flat [elements]; states as the optimizer has them
};

struct Gradients {
  struct Parameter {
    int32_t input = -1;       // of the local graph
    graph::ValueId gradient;  // of the local graph
    int32_t bucket = -1;
    int64_t offset = 0;      // elements from the bucket's start
    std::string shard_axes;  // the gradient's norm is to be summed over these
    ValueId weight, value;   // views of the bucket: the parameter and its gradient
  };
  std::vector<Parameter> parameters;  // those with a gradient, in the order of the graph's inputs
  std::vector<Bucket> buckets;
};

// What the passes that make a draft look at.
struct Source {
  const graph::Graph& whole;
  const shard::LocalGraph& local;
  const plan::Plan& plan;
  const StepSpec& spec;
  int64_t rank = 0;
};

// Returns the names of the axes of several ranks that have this kind of placement, comma separated.
std::string axes_where(const mesh::Mesh& mesh, const mesh::Placements& placements,
                       mesh::Placement::Kind kind);

// Returns how a Partial value is reduced, "sum" or "avg"; "sum" for one that is not Partial. Throws
// Error for others, naming `what`.
std::string reduce_name(const mesh::Mesh& mesh, const mesh::Placements& placements,
                        const std::string& what);

// Groups the parameters into buckets and gives all that outlives a step its value and binding:
// weights, optimizer state, buffers, constants, scalars. `inputs`, like the local graph's inputs,
// receives the values; data inputs have none yet.
Gradients make_state(Draft& draft, const Source& source, std::vector<ValueId>& inputs);

// Appends the sections "prologue" and "prologue_last" where there are averages, then "micro".
void make_microbatch_sections(Draft& draft, const Source& source, const Microbatches& microbatches,
                              const Gradients& gradients, const std::vector<ValueId>& inputs,
                              TraceSource& traces);

// Appends the section "step": the gradients' norm, clipping, the optimizer.
void make_step_section(Draft& draft, const Source& source, const Gradients& gradients,
                       double factor);

// -- 4. On the draft
// -------------------------------------------------------------------------------------------------

// Has collectives start as soon as what they read is there, packing included, and what unpacks
// their results run just before it is needed. Collectives keep their order, so that all ranks start
// them in one. Those that read parameters stay: gathering them early is a matter of memory.
void order_collectives(Draft& draft);

// Puts the wait for each collective before the first instruction that needs it.
void insert_waits(Draft& draft);

// Decides addresses: pointwise results take the place of operands that die, then every frame is
// packed by lifetimes. Sets frames, places and peak.
void assign_memory(Draft& draft);

// Cuts the draft's sections into the program's (first, middle, last microbatch), with order and
// releases.
Program finish(Draft draft);

}  // namespace perigee::compile
