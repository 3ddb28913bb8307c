// Times and bytes of a model's prologue, one block and its epilogue on one rank, from a
// compiled program of the folded model. The costs of any number of blocks in any pipeline
// extrapolate from them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"
#include "mesh/axis_set.h"
#include "methods/method.h"
#include "search/layers/buckets.h"
#include "search/layers/fold.h"
#include "search/space/choice.h"
#include "simulate/op_cost.h"

namespace perigee::search {

// Parameters of a layer with the same placements: a unit (plan::Unit) gathers and reduces them
// together. Bytes on one rank, unsharded on the axes over which units are cut.
struct FlatGroup {
  mesh::AxisSet axes;    // on which they are sharded
  bool experts = false;  // also sharded on the expert axis
  double gathered = 0;   // as ops read them
  double weights = 0;    // as they are stored
  double gradients = 0;  // as they are reduced
  double pieces = 0;     // number of reductions, where units are made by size
  double largest = 0;    // of `gradients`: of one parameter
  double summed = 0;     // of `gradients`: also summed over tensor ranks
  double read_late = 0;  // of `gathered`: read by the epilogue (tied)
  bool in_forward = false, in_backward = false;  // which pass reads one of them
  bool operator==(const FlatGroup&) const = default;
};

// Costs of one microbatch on one rank, unless stated otherwise. Seconds, bytes.
struct Layer {
  double forward = 0, backward = 0;            // backward: with recomputation
  double communication = 0;                    // of both: collectives within the layer
  double forward_communication = 0;            // of `forward`
  double gradient = 0;                         // of `backward`: gradients of weights
  double tail = 0;                             // of `backward`: after the last product of those
  double forward_cast = 0, backward_cast = 0;  // of both: weights to the low precision
  double weights = 0;                          // of parameters, as the rank stores them
  double gradients = 0;                        // of their gradients
  double states = 0;                           // of the optimizer, and masters
  double transient = 0;                        // further bytes while they are stepped
  double saved = 0;                            // by the forward pass, for the backward pass
  double low = 0;  // of `saved`: weights in the low precision, where each microbatch casts them
  // Values that gradients of weights read, of `saved` and of the backward pass: they stay until
  // deferred weight gradients are computed.
  double operands = 0;
  double step = 0;               // per step: the optimizer and the work before it
  double norm = 0;               // of `step`: up to the all-reduce of the gradients' norm
  std::vector<FlatGroup> flats;  // of `weights`
  std::vector<Bucket>
      buckets;  // of `gradients`, in which they are reduced; empty: no more than one
};

// The fields that are sums over a layer's instructions and parameters.
inline constexpr double Layer::*kSums[] = {
    &Layer::forward,  &Layer::backward,  &Layer::communication, &Layer::forward_communication,
    &Layer::gradient, &Layer::tail,      &Layer::forward_cast,  &Layer::backward_cast,
    &Layer::weights,  &Layer::gradients, &Layer::states,        &Layer::transient,
    &Layer::saved,    &Layer::low,       &Layer::operands};

struct Layers {
  Layer prologue, block, epilogue;  // `block`: one of them
  double working = 0;               // further bytes while a block's backward pass runs
  double crossing = 0;              // bytes that a block sends to the next
  double entering = 0;              // of these: read by the next one's backward pass
  bool tied = false;                // the epilogue reads parameters of the prologue
  bool masters = false;             // parameters are float32 masters of what ops read (half)
  bool measured = false;            // all times were measured
  double repeated = 0;              // seconds of a block's backward pass: recomputation
  int kind = 0;                     // of the cluster's devices, whose times these are
  int parameters = 0;               // equal where flats, `tied` and `masters` are equal
  // Where a solver chooses the recomputed blocks: this table is without recomputation,
  // `recomputing` is with all blocks recomputed.
  const Layers* recomputing = nullptr;
};

// Tables by precision, ranks of the axes within a layer, sequence, attention, checkpoint (of all
// ops or some), samples of a microbatch, and the kind of device. Programs are compiled for one
// sample and for the most, and with all blocks recomputed, none, or all but their kept values;
// costs between these are interpolated.
class LayerTables {
 public:
  // The most samples of a microbatch, and the samples for which the folded graph was captured: a
  // multiple of as many on each expert rank.
  struct Samples {
    int64_t most = 1, captured = 1;
  };
  // Keeps all by reference. `defined`: methods that the pins may name.
  LayerTables(const Folded& folded, Samples samples, const compile::StepSpec& spec,
              const Pins& pins, bool eight_bits, simulate::OpCosts& costs,
              compile::TraceSource& traces,
              std::span<const std::shared_ptr<const methods::Method>> defined = {})
      : folded_(folded),
        samples_(samples),
        spec_(spec),
        pins_(pins),
        eight_bits_(eight_bits),
        costs_(costs),
        traces_(traces),
        defined_(defined),
        row_(row_of(folded)) {}

  // Returns the table for the choice on a kind of the cluster's devices, or nullptr where the
  // methods or the graph do not allow it; `why` is then the reason.
  const Layers* find(const Choice& choice, std::string& why, int kind = 0);

  // Makes the tables of all these at once, on all cores.
  void prepare(const std::vector<Choice>& choices);

  // Returns the table on the slowest kind of device of `count` ranks from `first` on.
  const Layers* on_ranks(const Choice& choice, int64_t first, int64_t count, std::string& why);

  // Returns the blocks as `checkpoint` names them.
  const BlockRow& row() const { return row_; }

  // Returns the number of compiled programs.
  size_t compiled() const { return tables_.size(); }

 private:
  struct Entry {
    std::vector<Layers> layers;  // by kind of device
    std::string why;             // "" where there is a table
  };
  static BlockRow row_of(const Folded& folded);
  static std::string key_of(const Choice& choice);
  // Returns the choice with no block recomputed and with all, between which each n-th lies.
  static std::pair<Choice, Choice> ends_of(const Choice& choice);
  // Returns the choices whose programs the choice's table is made from.
  std::vector<Choice> programs_of(const Choice& choice) const;
  Entry look(const Choice& choice);
  // Sets the recomputed seconds; drops a table whose recomputation saves no memory.
  void compare_with_none(const Choice& choice, Entry& entry);
  // From a program of its own, without Layers::parameters; by any thread, unless
  // scripts define methods.
  Entry make(const Choice& choice);
  // Returns Layers::parameters of layers that were just made.
  int number(const Layers& layers);

  const Folded& folded_;
  Samples samples_;
  const compile::StepSpec& spec_;
  const Pins& pins_;
  bool eight_bits_;
  simulate::OpCosts& costs_;
  compile::SharedTraces traces_;
  std::span<const std::shared_ptr<const methods::Method>> defined_;
  BlockRow row_;
  std::map<std::string, Entry> tables_;
  std::map<std::string, Entry> ready_;  // by prepare()
  std::vector<Layers> numbered_;        // the first of each number
};

// Returns the table where that share of the blocks is as in `b`, the others as in `a`.
Layers between(const Layers& a, const Layers& b, double share);

}  // namespace perigee::search
