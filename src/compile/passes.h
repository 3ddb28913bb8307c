// The passes of compile/, in the order they run (compile.cc). Each has one reason to exist.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"
#include "compile/draft.h"
#include "compile/loss_scale.h"
#include "compile/stage.h"
#include "graph/graph.h"
#include "plan/units.h"
#include "shard/partition.h"

namespace perigee::compile {

// -- 1. On the whole graph
// -------------------------------------------------------------------------------------------

// Drops the outputs that the step does not want: gradients of frozen parameters, all but loss and
// results in an evaluation, results nobody asked for. The nodes stay, so that the plan's names of
// values hold; what is then unused goes from the rank's graph. Throws Error for names the graph
// lacks.
graph::Graph select_outputs(graph::Graph graph, const StepSpec& spec);

// Multiplies the gradient that the backward pass starts with by a constant of this name: make_state
// makes it the loss scale. A graph without gradients stays as it is.
inline constexpr const char* kLossScale = "perigee.loss_scale";
graph::Graph scale_loss(graph::Graph graph, const plan::LossScale& scale);

// Makes every op compute as the plan's precision says, by casts before it: LibTorch's autocast, on
// the whole graph, so that what shard/ moves is moved in the low precision. float64 is left alone.
// A backward op computes as the forward op that made it; gradients add up in the type of the value
// that they are of. A value is cast once for all that read it so (a parameter before its views, so
// once for each microbatch; one that is gathered anew for the backward pass once more there).
// Parameters of units that are stored in parts (plan::stores_parts) come in the low precision, as
// they are then gathered, unless the precision has scopes. Outputs keep their types, but for
// gradients where the precision has other ones. Values keep their numbers; casts come behind them.
graph::Graph autocast(const graph::Graph& graph, const plan::Plan& plan);

// Appends a node whose outputs are values of the graph already, and says there who makes them.
graph::NodeId append(graph::Graph& graph, graph::Node node);

// Returns the plan with its placements under the names that the values have in `now`, which has
// the values of `before` under their numbers, and more.
plan::Plan with_names_of(plan::Plan plan, const graph::Graph& before, const graph::Graph& now);

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

// Has the backward pass cast parameters anew: where several microbatches are in flight, each would
// keep its own low copy of them.
graph::Graph cast_again(graph::Graph local);

// What a region costs and brings on a rank, for each microbatch, whichever others run again.
struct RegionCost {
  double flops = 0;   // run again
  int64_t bytes = 0;  // not kept for the backward pass
};
std::vector<RegionCost> recompute_costs(const graph::Graph& local, const plan::Recompute& plan);

// -- 3. To a draft
// ---------------------------------------------------------------------------------------------------

// Parameters whose gradients lie side by side: reduced and stepped together.
struct Bucket {
  graph::DType dtype = graph::DType::float32;
  graph::DType gradient_dtype = graph::DType::float32;
  int32_t group = 0;   // of the optimizer
  std::string axes;    // the gradients are Partial on these; "" where none is
  std::string stages;  // a stream: of the stages that have these parameters too; "" where none has
  size_t section = 0;  // of Source::sections: makes the last gradient
  std::string reduce = "sum";
  std::string channel;            // which of the streams over the axes reduces it: "", "#1", ...
  std::vector<int32_t> averages;  // of Plan::averages: those of its parameters
  std::vector<int32_t>
      parameters;  // indices into Gradients::parameters, in the order their gradients become ready
  int64_t elements = 0;
  ValueId weights, gradients, first_state,
      second_state;  // flat [elements]; states as the optimizer has them
  // What is reduced over `axes` where that is done in a lower precision: `gradients`, or of a unit
  // `part`, rounded.
  ValueId low;

  // Of a unit (plan::Unit; units.cc): all flat, the whole padded to parts * part elements. `axes`
  // are those beside the unit's own on which every gradient is Partial.
  int32_t flat = -1;       // index into Gradients::flats
  int level = 0;           // the unit's; 0: of no unit
  std::string early_axes;  // instead of `axes`: reduced as a whole, before the unit's own reduction
  // Of what is stored in parts: the whole weights while they are used; then `weights` is the part.
  ValueId gathered;
  ValueId own;   // this rank's part of the weights
  ValueId part;  // this rank's part of the reduced gradients

  // What the optimizer steps at once: of one group, and held by this rank.
  struct Share {
    int32_t group = 0;
    ValueId weights, gradients, first_state, second_state;
    // Where new weights are rounded at random: numbers drawn by element of the whole parameter, and
    // the arguments of the perigee::random that draws them.
    ValueId noise;
    std::vector<std::pair<std::string, graph::Arg>> draw;
  };
  std::vector<Share> shares;
};

// What a rank holds of a parameter that it steps: a box of it, contiguous.
struct HeldPiece {
  int32_t parameter = -1;             // of Gradients::parameters
  std::vector<mesh::Range> ranges;    // of the whole parameter
  ValueId weights, gradients;         // shaped as the box
  ValueId first_state, second_state;  // of it, as the optimizer has them
};

struct Gradients {
  struct Parameter {
    int32_t input = -1;       // of the local graph
    graph::ValueId gradient;  // of the local graph; undefined: of a unit, and not trained
    std::vector<graph::ValueId> earlier;  // what parts add to it whose backward passes come before
    int32_t bucket = -1;
    int64_t offset = 0;      // elements from the bucket's start
    std::string shard_axes;  // the gradient's norm is to be summed over these
    std::string early_axes;  // of a unit: Partial on these where others of it are not
    ValueId weight, value;   // views of the bucket: the parameter and its gradient
    ValueId row, column;     // adafactor: states that are whole on every rank

    // Takes the graph's next output of this gradient.
    void add(graph::ValueId v) {
      if (gradient.defined()) earlier.push_back(gradient);
      gradient = v;
    }
    const graph::ValueId& first() const { return earlier.empty() ? gradient : earlier.front(); }
  };
  std::vector<Parameter> parameters;  // of units, then in the order of the graph's inputs
  std::vector<Bucket> buckets;        // of units first: one for each of `flats`
  std::vector<plan::Flat> flats;
  std::vector<HeldPiece> pieces;  // of adafactor and muon, which step tensor by tensor
  LossScaleState loss_scale;
};

// What runs as a whole for one microbatch: all of it, or what a part of a pipeline does forwards,
// backwards, or for the gradients of its weights alone.
struct MicroSection {
  std::string name;
  PartId part;
  PipelineKind kind = PipelineKind::forward;
  std::vector<graph::NodeId> nodes;
};

// Returns the sections in the order in which they run for one microbatch.
// `kept`: those of kept parts.
std::vector<MicroSection> make_micro_sections(const std::vector<graph::NodeId>& micro,
                                              const Stage* stage, bool kept);

// What the passes that make a draft look at.
struct Source {
  const graph::Graph& whole;
  const shard::LocalGraph& local;
  const plan::Plan& plan;
  const StepSpec& spec;
  const std::vector<plan::Flat>& flats;  // of the plan's units, on this rank
  int64_t rank = 0;
  const std::vector<MicroSection>& sections;
  const Stage* stage = nullptr;                  // of a pipeline
  shard::LossKind loss = shard::LossKind::mean;  // where anything depends on it
  const Crossings* crossings = nullptr;          // of stages of unequal submeshes

  // Returns in which section the value is made; the last one for what no node makes.
  size_t section_of(graph::ValueId v) const;
};

// Returns the parameter's optimizer group: 0 for the default one, k + 1 for StepSpec::groups[k].
int32_t group_of(const StepSpec& spec, const std::string& name);

// Returns the names of the axes of several ranks that have this kind of placement, comma separated.
std::string axes_where(const mesh::Mesh& mesh, const mesh::Placements& placements,
                       mesh::Placement::Kind kind);

// Returns the axes of both lists in the mesh's order, each once.
std::string join_axes(const mesh::Mesh& mesh, const std::string& a, const std::string& b);

// Returns how a Partial value is reduced, "sum" or "avg"; "sum" for one that is not Partial. Throws
// Error for others, naming `what`.
std::string reduce_name(const mesh::Mesh& mesh, const mesh::Placements& placements,
                        const std::string& what);

// Has each unit's parameters make a bucket, before all others.
void collect_units(const Source& source, Gradients& gradients);

// Gives a unit's bucket its values, and weights and optimizer state their bindings: one for each
// piece of a parameter that the rank holds.
void make_unit_state(Draft& draft, const Source& source, Gradients& gradients, Bucket& bucket,
                     std::vector<ValueId>& inputs);

// A gathering of a unit's weights in the microbatch section.
struct Gather {
  int32_t bucket = -1;
  graph::Phase phase = graph::Phase::forward;
  graph::NodeId before = 0;  // the first node of all ranks before which it starts
};

// Returns when units that are stored in parts are gathered: where their weights are used, once or
// once for the forward and once for the backward ops, as early as Communication::prefetch_* say; in
// the order of `before`. All ranks that share a unit get the same answer: `local` is as it was
// before cut_microbatches leaves out of it what only other ranks need. No gathering starts in an
// earlier section of a pipeline's parts than it is used in, but for one that serves all
// microbatches.
std::vector<Gather> place_gathers(const graph::Graph& local, const plan::Plan& plan,
                                  const std::vector<plan::Flat>& flats, const Stage* stage);

// Returns the type that gradients are rounded to before they are reduced; nothing where they are
// reduced as they are.
std::optional<graph::DType> reduced_type(const Source& source, graph::DType gradients);

// Returns whether ranks clip their own gradients: then all reductions wait for the step section.
bool clips_first(const Source& source);

// Appends what reduces a bucket's gradients (of a unit: the rank's part) over Bucket::axes, and,
// where the result is rounded, what puts it in their place.
void start_reduction(Draft& draft, const Source& source, const Bucket& bucket,
                     const std::string& reduce, uint8_t when, std::vector<DraftInstruction>& out);
void end_reduction(const Source& source, const Bucket& bucket, std::vector<DraftInstruction>& out);

// Appends what reduces a unit's gradients, all of them there, to this rank's part: into `target`.
// Returns the event of the reduction.
int32_t scatter_unit(Draft& draft, const Source& source, const Gradients& gradients,
                     const Bucket& bucket, ValueId target, uint8_t when,
                     std::vector<DraftInstruction>& out);

// Appends what gathers the ranks' parts of a unit's weights into Bucket::gathered, each rank's cast
// before where ops read them in a lower precision; in the first microbatch alone where that serves
// all.
void gather_unit(Draft& draft, const Gradients& gradients, const Gather& gather,
                 std::vector<DraftInstruction>& out);

// Returns the instruction that gathers new weights of levels 1 and 2 that are stored whole, into
// Bucket::weights.
DraftInstruction gather_stepped(Draft& draft, const Gradients& gradients, const Bucket& bucket);

// Groups the parameters into buckets and gives all that outlives a step its value and binding:
// weights, optimizer state, buffers, constants, scalars. `inputs`, like the local graph's inputs,
// receives the values; data inputs have none yet.
Gradients make_state(Draft& draft, const Source& source, std::vector<ValueId>& inputs);

// What all microbatches have in common: averages, made before the first, and what they add up.
struct Accumulated {
  std::vector<ValueId> averages;           // like Microbatches::averages
  std::map<std::string, ValueId> results;  // losses and results by name
};

// Returns the gradients as the graph of microbatches that keep their results makes them.
Gradients gradients_of(const Source& kept, const Source& source, Gradients gradients);

// Appends the sections "prologue" and "prologue_last" where there are averages that nothing has
// made yet, then "micro", or those of the stage's parts.
void make_microbatch_sections(Draft& draft, const Source& source, const Microbatches& microbatches,
                              const Gradients& gradients, const std::vector<Gather>& gathers,
                              const std::vector<ValueId>& inputs, Accumulated& accumulated,
                              TraceSource& traces);

// Appends the section "step": the gradients' norm, clipping, the optimizer. `factor` is
// Microbatches::factor.
void make_step_section(Draft& draft, const Source& source, const Gradients& gradients,
                       double factor);

// Appends the sections "average.K": behind every K-th step copies of the model are averaged.
void make_average_sections(Draft& draft, const Source& source, const Gradients& gradients);

// With a pipeline: has what is sent waited for where its memory is needed again.
void wait_for_sends(Draft& draft);

// -- 4. On the draft
// -------------------------------------------------------------------------------------------------

// With a pipeline: has messages received into memory of their own, before the run in front of the
// one that needs them.
void receive_ahead(Draft& draft);

// Has all messages of a stage that are received ahead come to one frame, of which runs take the two
// copies in turns.
void share_landings(Draft& draft);

// Has matrix products whose result is only added to a gradient add to it themselves
// (perigee::addmm_): no result of their own, no pass over it.
void accumulate_products(Draft& draft, TraceSource& traces);

// Has low gradients that are cast for nothing but to be added to a wide sum added as they are.
void accumulate_casts(Draft& draft);

// Returns the collectives over `tensor` of the backward pass that are not in Overlap::bulk: which
// bytes each reads, by event.
using WholeCollectives = std::map<int32_t, std::pair<int64_t, int64_t>>;
WholeCollectives find_waited(const Draft& draft, const std::vector<std::string>& bulk);

// Cuts matrix products whose sums are reduced over ranks, or whose rows are gathered, into at most
// Overlap::slices pieces of rows: one is reduced, or the next gathered, while another is computed.
// Throws Error naming the method where the step has none.
void slice_products(Draft& draft, const mesh::Mesh& mesh, const plan::Overlap& overlap,
                    TraceSource& traces);

// Has weights' gradients that stand before the product whose result a collective waits for run
// beside the collective.
void put_products_beside(Draft& draft);

// Copies what the ops of Offload::activations leave to the backward pass to the host's memory, and
// back into values of its own: out while the ops of the next scope run, back before those that need
// it, Offload::prefetch scopes ahead.
void offload_activations(Draft& draft, const plan::Offload& offload);

// Has what outlives a step in the host's memory (Home::host) copied to the device for each
// instruction that touches it, and back where it writes it: Offload::prefetch such instructions
// ahead, and while the next one runs.
void stage_host_state(Draft& draft, const plan::Offload& offload);

// Gives each gathering of a unit but its first a value of its own, and has what runs behind it read
// that.
void separate_gathers(Draft& draft, const Gradients& gradients);

// Gives what sections of kept parts use within a microbatch, and sections of the others too (whole
// weights and gradients of units), values of their own there.
void separate_kept(Draft& draft);

// Has collectives start as soon as what they read is there, packing included, and what unpacks
// their results run just before it is needed. Collectives keep their order, so that all ranks start
// them in one. Those that read parameters stay: gathering them early is a matter of memory.
void order_collectives(Draft& draft);

// Has these collectives waited for where they start, but for those that are cut since.
void wait_at_once(Draft& draft, const WholeCollectives& waited);

// Puts the wait for each collective before the first instruction that needs it.
void insert_waits(Draft& draft);

// Where a stage runs microbatches in turns: cuts the sections of parts in pieces behind what they
// send to experts, so that another microbatch runs while it is under way. Pieces stand one behind
// the other, with the part and kind of their section.
void cut_exchanges(Draft& draft);

// With a pipeline: the runs of Draft::order, where pieces of sections that run in turns alternate;
// which copy of each frame each of them has, by the part whose frame it is; and how many there are
// of each. A microbatch has one from a part's forward pass to the last section that touches it.
struct DraftRun {
  int32_t section = 0, microbatch = 0;
  size_t position = 0;  // of its op in Draft::order; behind them all, where it is deferred
};
std::vector<DraftRun> runs_of(const Draft& draft);
std::map<PartId, int64_t> copies_of_frames(const Draft& draft);
std::vector<std::map<PartId, int32_t>> copies_by_run(const Draft& draft);

// Returns whose frame has what deferred weight gradients read and other sections of their stage
// make, by root.
std::map<int32_t, PartId> deferred_operands(const Draft& draft);

// Decides addresses: pointwise results take the place of operands that die, then every frame is
// packed by lifetimes. Sets frames, places and peak.
void assign_memory(Draft& draft);

// Cuts the draft's sections into the program's (first, middle, last microbatch), with order and
// releases.
Program finish(Draft draft);

}  // namespace perigee::compile
