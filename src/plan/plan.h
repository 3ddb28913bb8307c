// The plan: the complete, serialisable answer to "how is this graph executed on this mesh".
// Strategies and solvers make it, methods edit it, compile/ carries it out. It names graph values
// and scopes, never addresses or counters.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "plan/fp8.h"
#include "plan/precision.h"

namespace perigee::plan {

// Where gradients are reduced and how.
struct Communication {
  int64_t bucket_bytes = 25 << 20;  // gradients are all-reduced in buckets of at least this size
  bool overlap = true;              // start a bucket as soon as its last gradient is there
  // At most so many buckets of gradients that are reduced alike: they grow above bucket_bytes where
  // those would be more (0: any).
  int64_t buckets = 0;
  int64_t communicators = 1;  // an axis group's buckets take turns on so many streams
  // float16 or bfloat16: gradients are multiplied by reduce_scale and rounded to it before they are
  // reduced, and divided behind it. Nothing: as they are.
  std::optional<graph::DType> reduce_dtype;
  double reduce_scale = 1;
  // Gradients of a mean loss are summed over the batch's ranks and the microbatches, not averaged:
  // as many times larger.
  bool sum = false;
  // Every data rank clips its own gradient, those of its samples alone, before it is reduced; the
  // norm of a step is then the average of theirs. Not what one device does.
  bool clip_first = false;
  // Units of level 3: how many are gathered before they are used, each while the one before it is
  // at work, and how many bytes these may take at most (0: any).
  int64_t prefetch_forward = 1;
  int64_t prefetch_backward = 1;
  int64_t prefetch_bytes = 0;
  bool operator==(const Communication&) const = default;
};

// Forward ops that run again in the backward pass, so that their results need not be kept until
// then. A region is the ops of some scopes and of all below them; what another region or an op
// outside reads of it is kept. Random ops draw the same numbers again.
struct Recompute {
  std::vector<std::vector<std::string>> regions;  // scopes of each; no scope is in two of them
  std::vector<std::string> only;  // ops that run again; empty: all but those of `keep`
  std::vector<std::string> keep;  // ops whose results are kept all the same
  // The same of single regions, in the place of `keep`: by a region's first scope. Empty: all of it
  // runs again.
  std::map<std::string, std::vector<std::string>> keep_in;
  // With a pipeline: of the microbatches in flight on a stage so many keep all their results; the
  // others run their regions again.
  int64_t kept_microbatches = 0;
  // Above 0: of the regions only those run again that it takes for no rank to need more bytes.
  // compile::fit_recompute chooses them; the plan that is carried out has 0.
  int64_t budget_bytes = 0;
  bool operator==(const Recompute&) const = default;
};

// What lies in the host's memory while the device does not need it. It is copied on streams of its
// own, beside the ops.
struct Offload {
  // What ops of these scopes make and the backward pass reads: copied out while the next of the
  // scopes computes, and back ahead of its backward pass.
  std::vector<std::string> activations;
  bool parameters = false;  // the rank's parts of units of level 3
  bool optimizer = false;   // optimizer state
  int64_t prefetch = 1;     // so many scopes, or ops that need such memory, ahead it is copied back
  bool operator==(const Offload&) const = default;
};

// What a step does at the same time, beside Communication::overlap.
struct Overlap {
  bool accumulate = false;  // matrix products add to the gradient that they are a part of
  bool step = false;        // a bucket is stepped when it is reduced, not when all are
  bool receives = false;    // a pipeline's messages come while the section before theirs runs
  int64_t slices = 1;       // a matrix product is cut into so many, beside collectives of its rows
  std::vector<std::string> sliced = all_sliced();  // which are cut
  std::vector<std::string> whole;                  // scopes whose products are not cut
  // Which collectives over `tensor` of the backward pass go beside products that do not need them,
  // as a whole: what is gathered for weights' gradients, and sums that the layer in front waits
  // for.
  std::vector<std::string> bulk = all_bulk();

  bool experts = false;  // what ranks exchange for experts goes while another microbatch computes
  // Weight gradients are computed apart from, and behind, the input gradients of a microbatch and
  // part, where the stage would wait (ScheduleOptions::delay_weights).
  bool weights = false;
  // With a pipeline: what the last stage adds to the gradients of these parameters (their own
  // names) is computed behind all else of the stage, of the first `deferred_limit` microbatches (0:
  // of all); of the others with their backward passes.
  std::vector<std::string> deferred;
  int64_t deferred_limit = 0;

  // Products whose rows are gathered; whose sums are reduced, in the forward pass; whose sums are
  // gradients.
  static std::vector<std::string> all_sliced() { return {"gathers", "sums", "gradient_sums"}; }
  static std::vector<std::string> all_bulk() { return {"gathers", "sums"}; }
  bool operator==(const Overlap&) const = default;
};

// Parameters that are stored together: one flat tensor of their elements, in this order, cut into
// equal parts over the axes (padded behind the last). Only storage is cut: ops see each parameter
// whole on these axes (Plan::placements), and its gradient is Partial on them. Levels as in ZeRO
// (Rajbhandari et al. 2020): what a rank keeps its part of, instead of the whole.
struct Unit {
  std::string name;                     // the scope it was made from, or "size.K"
  std::vector<std::string> parameters;  // their own names
  std::string axes;                     // comma separated
  int level = 3;                        // 1: optimizer state, 2: and gradients, 3: and parameters
  bool reshard_after_forward = true;    // level 3: gather again for the backward pass
  bool operator==(const Unit&) const = default;
};

// Stages: the forward pass is cut into parts where it first comes to an op of each of these scopes;
// a backward op belongs to the part of the forward op that made it. Part k runs on the ranks at
// position k % S of the axis, S its size (schedules of the V kind lead back to the first stage:
// cost/schedule.h, Schedule::parts). Nothing is sharded on the axis. What one part makes and
// another uses is sent.
struct Pipeline {
  std::string axis;                 // "": one stage
  std::vector<std::string> starts;  // of the parts behind the first, in forward order
  int64_t chunks = 1;               // parts of a stage
  std::string schedule = "1f1b";    // one of schedule_names()
  int64_t group = 0;  // interleaved: microbatches that run together; 0: as many as stages
  int64_t extra = 0;  // 1f1b: forwards in flight above what 1f1b has
  // float16, bfloat16, float32 or float64: what stages send is cast to it, and back where it comes.
  // Nothing: it is sent as it is.
  std::optional<graph::DType> dtype;
  // Times of a whole stage for one microbatch, and of a message to its neighbour, for schedules
  // that are found by a search.
  double forward = 1, backward = 1, weights = 1, transfer = 0;

  bool cuts() const { return !axis.empty(); }
  bool operator==(const Pipeline&) const = default;
};

// Weights of copies (Plan::copy_axes) that are averaged behind every step whose number is a
// multiple of `every`.
struct Average {
  std::string axes;  // comma separated; of copy_axes
  int64_t every = 1;
  std::vector<std::string> parameters;  // their own names
  bool states = false;                  // and what the optimizer keeps for them
  bool operator==(const Average&) const = default;
};

// Before anything else the captured graph is rewritten: the ops of a pattern, forward and backward,
// give way to others that compute the same (graph/rewrite.h).
struct Rewrite {
  std::string name;                  // of a built-in one (graph/fusions.h), or the user's own
  std::string pattern, replacement;  // graphs as text; both empty: the built-in ones of that name
  bool operator==(const Rewrite&) const = default;
};

// One decision and who took it: printed by --explain.
struct Decision {
  std::string by;        // the method's or solver's name
  std::string sentence;  // "gradients are all-reduced over data (4 ranks) in buckets of 25 MiB"
  bool operator==(const Decision&) const = default;
};

// What the cost model expects of one rank (peak) or of the step (time).
struct Prediction {
  std::vector<int64_t> peak_bytes;  // per rank in mesh order
  std::vector<int64_t> host_bytes;  // the same of Offload's memory; empty: none has any
  double step_seconds = 0;          // 0: no estimate
  double measured_share = 0;        // of step_seconds; 0: all of it is an estimate from peaks
  bool exact_memory = false;        // every op instance had a recorded allocation trace
  bool operator==(const Prediction&) const = default;
};

// "all_gather", "all_to_all": a value of which each rank has a piece is not made whole, or cut
// along another dim, to be read (what units store is gathered all the same, and attention over a
// split sequence and experts have exchanges of their own). "nd_shardings": no tensor is split over
// several axes. "replicated_products": the ranks of a stage do not all compute the same product.
// "replicated_parameters": no parameter is stored whole on several ranks of a stage.
std::vector<std::string> forbiddable();

struct Plan {
  std::string graph_hash;  // graph::structural_hash of the graph it was made for
  mesh::Mesh mesh;
  int64_t microbatches = 1;  // per optimizer step
  std::string batch_axes =
      "data";  // axes (comma separated) that the batch dim of data inputs is sharded on

  // Placements by value name (graph::value_names; a parameter's or input's own name): what the plan
  // pins; what is open on an axis is not pinned there. Every other value gets its placement by
  // propagation. Data inputs not named here are
  // sharded on dim 0 over batch_axes, parameters and buffers not named here are replicated.
  std::map<std::string, mesh::Placements> placements;

  // Axes (comma separated) whose ranks train copies of the model: each on samples of its own, of
  // which there are as many as the graph was captured at, by gradients and a norm of its own.
  // Copies begin alike and meet in `averages` only; the loss and the norm of a step are the
  // averages of theirs. Nothing else is over these axes.
  std::string copy_axes;
  std::vector<Average> averages;

  // Each parameter stands in one unit at most; those in none are stored as they are placed.
  std::vector<Unit> units;

  Pipeline pipeline;

  // What the plan may not come to: of forbiddable(). Propagation finds another way, or there is
  // none.
  std::vector<std::string> forbidden;

  // Sharding rules that the user added or replaced, by op (shard/rule.h has the grammar).
  std::map<std::string, std::string> rules;

  std::vector<Rewrite> rewrites;  // in this order
  std::optional<Fp8> fp8;         // nothing: no op rounds to eight bits

  Recompute recompute;
  Offload offload;
  Overlap overlap;
  Precision precision;
  Communication communication;
  Prediction prediction;
  std::vector<Decision> decisions;

  bool operator==(const Plan&) const = default;
};

// Throws Error when the plan does not fit the graph (another structural hash: says what differs
// where it can), names values that the graph lacks, has placements whose count is not that of the
// axes, a dim out of range, or Partial inputs, recomputes or offloads scopes or ops that the graph
// lacks, has units that overlap, cut what is not whole or span parts of
// a stage, copies over axes that something is
// sharded over, averages over other axes, parameters on several ranks where that is forbidden, a
// precision that plan/precision.h refuses, an fp8 that plan/fp8.h refuses, rewrites that
// graph/rewrite.h refuses, or a pipeline whose axis the mesh lacks, whose starts are not as many as
// its parts, or name what the forward pass does not come to in that order.
void verify(const Plan& plan, const graph::Graph& graph);

// Returns how many copies of the model the ranks train: 1 but for copy_axes.
int64_t copies_of(const Plan& plan);

// JSON, "format": "perigee.plan/1", sorted keys, numbers as the shortest text that reads back
// equal; "precision", "rewrites" and "fp8" only where they are not
// the default. parse(print(p)) equals p. Throws Error for a
// prediction that is not finite.
std::string print(const Plan& plan);
// Throws Error naming the path in the file (`mesh.axes[1].size`), unknown keys with the nearest
// name.
Plan parse(std::string_view json, std::string_view file_name = "plan");

// Returns 32 hexadecimal digits over the printed form; all ranks compare it before anything runs.
std::string hash(const Plan& plan);

// Returns the decisions as sentences, one a line, and the prediction.
std::string explain(const Plan& plan);

}  // namespace perigee::plan
