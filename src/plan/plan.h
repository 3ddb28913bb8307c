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

#include "graph/adapters/adapters.h"
#include "graph/graph.h"
#include "mesh/mesh.h"
#include "mesh/placement.h"
#include "plan/fp8.h"
#include "plan/precision.h"

namespace perigee::plan {

// Where gradients are reduced and how.
struct Communication {
  int64_t bucket_bytes = 25 << 20;  // gradients are all-reduced in buckets of at least this size
  bool overlap = true;              // start a bucket as soon as its last gradient is computed
  // Largest number of buckets whose gradients are reduced over the same axes in the same type;
  // buckets grow above bucket_bytes to keep to it (0: no limit).
  int64_t buckets = 0;
  int64_t communicators = 1;  // streams among which the buckets of an axis group alternate
  // float16 or bfloat16: gradients are multiplied by reduce_scale and cast to this type before
  // the reduction, and divided by reduce_scale after it. Nothing: gradients are reduced in their
  // own type.
  std::optional<graph::DType> reduce_dtype;
  double reduce_scale = 1;
  // Gradients of a mean loss are summed over the batch's ranks and the microbatches instead
  // of averaged.
  bool sum = false;
  // Every data rank clips the gradient of its own samples before the reduction; a step's gradient
  // norm is then the average of the ranks' norms. The result differs from one device's.
  bool clip_first = false;
  // Prefetch of units of level 3: how many units ahead of the current one are all-gathered in each
  // pass, and the most bytes that prefetched units may hold (0: no limit).
  int64_t prefetch_forward = 1;
  int64_t prefetch_backward = 1;
  int64_t prefetch_bytes = 0;
  bool operator==(const Communication&) const = default;
};

// Activation checkpointing: forward ops are recomputed in the backward pass instead of keeping
// their results. A region is the ops of some scopes and of all scopes below them; values that ops
// outside the region read are kept. Recomputed random ops draw the same numbers.
struct Recompute {
  std::vector<std::vector<std::string>> regions;  // scopes of each; no scope is in two of them
  std::vector<std::string> only;  // ops that are recomputed; empty: all but those of `keep`
  std::vector<std::string> keep;  // ops whose results are kept
  // Replaces `keep` in single regions, by a region's first scope. An empty list: the whole region
  // is recomputed.
  std::map<std::string, std::vector<std::string>> keep_in;
  // With a pipeline: number of microbatches in flight on a stage that keep all their results; the
  // others are recomputed.
  int64_t kept_microbatches = 0;
  // Memory limit of a rank in bytes, or 0. Above 0, compile::fit_recompute recomputes only as many
  // regions as are needed for every rank to fit; the executed plan has 0.
  int64_t budget_bytes = 0;
  bool operator==(const Recompute&) const = default;
};

// Tensors that are kept in host memory while the device does not need them. Copies run on streams
// of their own, concurrently with the ops.
struct Offload {
  // Scopes whose activations are offloaded: copied to the host while the next of the scopes
  // computes, and prefetched before the scope's backward pass.
  std::vector<std::string> activations;
  bool parameters = false;  // the rank's parts of units of level 3
  bool optimizer = false;   // optimizer state
  // How many scopes, or ops that read offloaded memory, ahead the copy back starts.
  int64_t prefetch = 1;
  bool operator==(const Offload&) const = default;
};

// Overlap of compute and communication within a step, in addition to Communication::overlap.
struct Overlap {
  bool accumulate = false;  // matrix products accumulate into their gradient's buffer
  // Products of 16 bits compute the tanh form of GELU after them, and its gradient.
  bool activations = false;
  // A bucket's optimizer step starts when the bucket is reduced, not when all are.
  bool step = false;
  bool receives = false;  // a pipeline's messages are received while the preceding section runs
  // Slices of a matrix product that overlap the collectives of its rows; 1: not sliced.
  int64_t slices = 1;
  std::vector<std::string> sliced = all_sliced();  // which products are sliced
  std::vector<std::string> whole;                  // scopes whose products are not sliced
  // Which collectives over `tensor` in the backward pass overlap, unsliced, with products that do
  // not depend on them: all-gathers for weight gradients ("gathers"), and sums that the preceding
  // layer needs ("sums").
  std::vector<std::string> bulk = all_bulk();

  // Interleaved microbatches: the expert all-to-all overlaps another microbatch's compute.
  bool experts = false;
  // Weight gradients of a microbatch and part are computed after its input gradients, in the
  // stage's bubble (ScheduleOptions::delay_weights).
  bool weights = false;
  // With a pipeline: parameters (by their own names) whose gradient contributions on the last stage
  // are deferred to the end of the stage's schedule, for the first `deferred_limit` microbatches
  // (0: for all). Other microbatches compute them in their backward passes.
  std::vector<std::string> deferred;
  int64_t deferred_limit = 0;

  // "gathers": products whose input rows are all-gathered; "sums": whose results are reduced in the
  // forward pass; "gradient_sums": whose results are reduced in the backward pass.
  static std::vector<std::string> all_sliced() { return {"gathers", "sums", "gradient_sums"}; }
  static std::vector<std::string> all_bulk() { return {"gathers", "sums"}; }
  bool operator==(const Overlap&) const = default;
};

// Parameters that are stored together: one flat tensor of their elements, in this order, cut into
// equal parts over the axes (padded after the last element). Only storage is cut: for ops each
// parameter is replicated on these axes (Plan::placements), and its gradient is Partial on them.
// Levels are ZeRO's stages (Rajbhandari et al. 2020).
struct Unit {
  std::string name;                     // the scope it was made from, or "size.K"
  std::vector<std::string> parameters;  // their own names
  mesh::AxisSet axes;
  int level = 3;  // sharded are 1: optimizer state, 2: and gradients, 3: and parameters
  // Level 3: free after the forward pass and re-gather for the backward pass.
  bool reshard_after_forward = true;
  // Levels 1 and 2: the ranks of the axes, which are on one host, hold one copy of the parameters in
  // memory that all of them map. Each writes its part; nothing is gathered.
  bool one_copy = false;
  bool operator==(const Unit&) const = default;
};

// Pipeline stages. The forward pass is cut into parts, each of which begins at the first op of a
// scope of `starts`; a backward op belongs to the part of its forward op. Part k runs on the ranks
// at position k % S of the axis, where S is the axis's size (V schedules place parts in a V:
// schedule/schedule.h, Schedule::parts). No tensor is sharded on the axis. Values that one part
// computes and another reads are sent.
struct Pipeline {
  std::string axis;  // "": one stage
  // Scopes at which the second and later parts begin, in forward order.
  std::vector<std::string> starts;
  int64_t chunks = 1;             // parts per stage
  std::string schedule = "1f1b";  // one of schedule_names()
  int64_t group = 0;  // interleaved: microbatches that a chunk runs in a row; 0: as many as stages
  int64_t extra = 0;  // 1f1b: additional microbatches in flight
  // float16, bfloat16, float32 or float64: messages between stages are cast to this type and back
  // on arrival. Nothing: messages keep their type.
  std::optional<graph::DType> dtype;
  // Predicted times of a stage's passes for one microbatch, and of a message to the next stage, in
  // one common unit. Only schedules that are found by search use them.
  double forward = 1, backward = 1, weights = 1, transfer = 0;

  bool cuts() const { return !axis.empty(); }
  bool operator==(const Pipeline&) const = default;
};

// Weights that the copies (Plan::copy_axes) average after each step whose number is a multiple
// of `every`.
struct Average {
  mesh::AxisSet axes;  // of copy_axes
  int64_t every = 1;
  std::vector<std::string> parameters;  // their own names
  bool states = false;                  // whether the parameters' optimizer state is averaged, too
  bool operator==(const Average&) const = default;
};

// A rewrite of the captured graph, applied before everything else: ops of a pattern, forward and
// backward, are replaced by an equivalent implementation (graph/rewrite/rewrite.h).
struct Rewrite {
  // A built-in rewrite (graph/rewrite/fusions.h), or the user's name for their own.
  std::string name;
  // Graphs as text; both empty: the built-in rewrites of that name.
  std::string pattern, replacement;
  std::vector<std::string> within = {};  // layers in other scopes stay; empty: in any scope
  bool operator==(const Rewrite&) const = default;
};

// One decision and the method or solver that took it; `--explain` prints it.
struct Decision {
  std::string by;        // the method's or solver's name
  std::string sentence;  // "gradients are all-reduced over data (4 ranks) in buckets of 25 MiB"
  bool operator==(const Decision&) const = default;
};

// The predicted peak memory of each rank and the predicted time of a step.
struct Prediction {
  std::vector<int64_t> peak_bytes;  // peak device memory per rank, in mesh order
  std::vector<int64_t> host_bytes;  // peak host memory of Offload per rank; empty: no rank offloads
  double step_seconds = 0;          // 0: not predicted
  // Share of step_seconds from measured times; 0: estimated from device peaks.
  double measured_share = 0;
  bool exact_memory = false;  // every op instance had a recorded allocation trace
  bool operator==(const Prediction&) const = default;
};

// Returns the names that Plan::forbidden may have: "all_gather", "all_to_all": a sharded value is
// not redistributed to Replicate, or to another dim, before an op reads it.
//   Units still gather, and ring attention and experts keep their exchanges.
// "nd_shardings": no tensor is sharded over several axes.
// "replicated_products": the ranks of a stage do not all compute the same product.
// "replicated_parameters": no parameter is replicated on several ranks of a stage.
std::vector<std::string> forbiddable();

struct Plan {
  // graph::structural_hash of the graph it was made for, with the adapters.
  std::string graph_hash;
  std::optional<graph::Adapters> adapters;  // nothing: the graph is the model's as captured
  mesh::Mesh mesh;
  int64_t microbatches = 1;           // per optimizer step
  mesh::AxisSet batch_axes = "data";  // the batch dim of data inputs is sharded on these

  // Pinned placements by value name (graph::value_names; a parameter's or input's own name). A
  // placement that is open on an axis is not pinned there. Propagation decides all other values.
  // Data inputs not named here are sharded on dim 0 over batch_axes; parameters and buffers not
  // named here are replicated.
  std::map<std::string, mesh::Placements> placements;

  // Axes whose ranks train copies of the model. Each copy has its own samples (as many as the graph
  // was captured at), gradients and gradient norm. Copies start equal and communicate in `averages`
  // only; a step's loss and norm are averages over the copies. Nothing else uses these axes.
  mesh::AxisSet copy_axes;
  std::vector<Average> averages;

  // Each parameter is in at most one unit; a parameter in none is stored as it is placed.
  std::vector<Unit> units;

  Pipeline pipeline;

  // Members of forbiddable(). Propagation avoids them, or throws Error where it cannot.
  std::vector<std::string> forbidden;

  // Sharding rules that the user added or replaced, by op (shard/rules/rule.h has the grammar).
  std::map<std::string, std::string> rules;

  std::vector<Rewrite> rewrites;  // in this order
  std::optional<Fp8> fp8;         // nothing: no op rounds to eight bits

  Recompute recompute;
  // The head, the loss and their gradients are computed in so many chunks of a rank's rows of a
  // microbatch (compile/graph/chunk_loss.h).
  int64_t loss_chunks = 1;
  Offload offload;
  Overlap overlap;
  Precision precision;
  Communication communication;
  // The ways, "blocks" or "library", to multiply matrices of a rank on a CPU, by product_name(): where
  // the usual one (exec/kernels/product/product.h) was measured to be slower.
  std::map<std::string, std::string> products;
  Prediction prediction;
  std::vector<Decision> decisions;

  bool operator==(const Plan&) const = default;
};

// Throws Error when the plan does not fit the graph:
// - another structural hash (the message names the difference where it can);
// - adapters that the graph lacks (graph::adapt adds them);
// - placements of unknown values, not one per axis, with a dim out of range, or Partial inputs;
// - recomputed or offloaded scopes or ops that the graph lacks;
// - fewer than one chunk of the loss, or products that no name or way fits;
// - units that overlap, shard parameters already sharded on their axes, or span parts of a stage;
// - copies over axes that something is sharded over, or averages over other axes;
// - replicated parameters where they are forbidden;
// - a precision, fp8 or rewrite that plan/precision.h, plan/fp8.h or graph/rewrite/rewrite.h refuses;
// - a pipeline over an axis that the mesh lacks, with a wrong number of starts, or with starts that the forward pass does
//   not reach in that order.
void verify(const Plan& plan, const graph::Graph& graph);

// Returns the name of a product of matrices [m, k] and [k, n] of a type: "float32 [64, 8] x [8, 32]",
// with a bias "float32 [64, 8] x [8, 32] + [32]".
std::string product_name(graph::DType factors, int64_t m, int64_t k, int64_t n, bool bias);

// Returns the number of copies of the model: the product of the sizes of copy_axes, 1 without any.
int64_t copies_of(const Plan& plan);

// Returns the plan as JSON, "format": "perigee.plan/1": sorted keys, numbers as the shortest text
// that parses to the same value; "precision", "rewrites", "adapters", "fp8", "loss_chunks" and "products" only
// where they differ from the default. parse(print(p)) equals p. Throws Error for a prediction that is not finite.
std::string print(const Plan& plan);
// Throws Error naming the path in the file (`mesh.axes[1].size`), unknown keys with the
// nearest name.
Plan parse(std::string_view json, std::string_view file_name = "plan");

// Returns 32 hexadecimal digits over the printed form; all ranks compare it before anything runs.
std::string hash(const Plan& plan);

// Returns the decisions as sentences, one a line, and the prediction.
std::string explain(const Plan& plan);

}  // namespace perigee::plan
