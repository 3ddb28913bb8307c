// What one block of a model, and what stands before and behind the blocks, costs on one rank: times
// and bytes from a compiled program of the folded model, from which the costs of any number of
// blocks in any pipeline follow.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compile/compile.h"
#include "methods/method.h"
#include "search/buckets.h"
#include "search/choice.h"
#include "search/fold.h"
#include "search/op_cost.h"

namespace perigee::search {

// Parameters of a layer that lie alike: what a unit (plan::Unit) gathers and reduces at once. Bytes
// on one rank, whole on the axes over which units are cut.
struct Flat {
  std::string axes;      // on which they are sharded, comma separated
  bool experts = false;  // on the expert axis, too: other ranks of it have others
  double gathered = 0;   // as ops read them
  double weights = 0;    // as they are stored
  double gradients = 0;  // as they are reduced
  double pieces = 0;     // in so many reductions, where units are made by size
  double largest = 0;    // of `gradients`: of one parameter
  double summed = 0;     // of `gradients`: sums over tensor ranks, too
  double read_late = 0;  // of `gathered`: what layers behind the blocks read (tied)
  bool in_forward = false, in_backward = false;  // which pass reads one of them
  bool operator==(const Flat&) const = default;
};

// Of one microbatch on one rank, unless said otherwise. Seconds, bytes.
struct Layer {
  double forward = 0, backward = 0;  // backward: with what runs again
  double communication = 0;          // of both: what they wait for collectives within the layer
  double forward_communication = 0;  // of `forward`
  double gradient = 0;               // of `backward`: what only gradients of weights need
  double behind = 0;                 // of `backward`: behind the last product of those
  double forward_cast = 0, backward_cast = 0;  // of both: weights to the low precision
  double weights = 0;                          // of parameters, as the rank stores them
  double gradients = 0;                        // of their gradients
  double states = 0;                           // of the optimizer, and masters
  double transient = 0;                        // what their step takes beside that
  double saved = 0;                            // what the forward pass leaves to the backward pass
  double low = 0;  // of `saved`: weights in the low precision, where each microbatch casts them
  // What gradients of weights read of `saved`, and of what the backward pass makes: where they come
  // later, it stays for them.
  double operands = 0;
  double step = 0;          // once a step: the optimizer, and what it waits for
  double norm = 0;          // of `step`: up to the gradients' norm, in which all stages meet
  std::vector<Flat> flats;  // of `weights`
  std::vector<Bucket>
      buckets;  // of `gradients`, in which they are reduced; empty: no more than one
};

// What adds up over a layer's instructions and parameters.
inline constexpr double Layer::*kSums[] = {
    &Layer::forward,  &Layer::backward,  &Layer::communication, &Layer::forward_communication,
    &Layer::gradient, &Layer::behind,    &Layer::forward_cast,  &Layer::backward_cast,
    &Layer::weights,  &Layer::gradients, &Layer::states,        &Layer::transient,
    &Layer::saved,    &Layer::low,       &Layer::operands};

struct Layers {
  Layer first, block, last;  // before, one of, and behind the blocks
  double working = 0;        // memory beside all that, while a block's backward pass runs
  double crossing = 0;       // bytes that a block hands to the next
  double entering = 0;       // of these: what the next one's backward pass reads
  bool tied = false;         // what stands behind the blocks reads parameters of what is before
  bool masters = false;      // parameters are float32 masters of what ops read (half)
  bool measured = false;     // all times were
  double repeated = 0;       // seconds of a block's backward pass: what runs again
  int kind = 0;              // of the cluster's devices, whose times these are
  int parameters = 0;        // equal where flats, `tied` and `masters` are
  // Where a solver chooses which blocks run again: this is the table of none, `again` that of all.
  const Layers* again = nullptr;
};

// Tables by what decides them: precision, ranks of the axes within a layer, sequence, attention,
// checkpoint (of all ops or some), samples of a microbatch, the kind of device. Programs are
// compiled for one sample and for the most, and with all blocks or none run again, or all but for
// what is kept of them; costs between are taken to be linear.
class LayerTables {
 public:
  // All kept by reference. The most samples of a microbatch, and what the folded graph was captured
  // at: a multiple of as many on each expert rank.
  struct Samples {
    int64_t most = 1, captured = 1;
  };
  // `defined`: methods that the pins' may name.
  LayerTables(const Folded& folded, Samples samples, const compile::StepSpec& spec,
              const Pins& pins, bool eight_bits, OpCosts& costs, compile::TraceSource& traces,
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
  // methods or the graph do not allow it; `why` then says it.
  const Layers* find(const Choice& choice, std::string& why, int kind = 0);

  // Makes the tables of all these at once, on all cores.
  void prepare(const std::vector<Choice>& choices);

  // The same on the slowest kind that `count` ranks from `first` on have.
  const Layers* on_ranks(const Choice& choice, int64_t first, int64_t count, std::string& why);

  // Returns the blocks as `checkpoint` names them.
  const BlockRow& row() const { return row_; }

  // How many programs were compiled.
  size_t compiled() const { return tables_.size(); }

 private:
  struct Entry {
    std::vector<Layers> layers;  // by kind of device
    std::string why;             // "" where there is a table
  };
  static BlockRow row_of(const Folded& folded);
  static std::string key_of(const Choice& choice);
  // Returns the choice without what each n-th block has of its own, and with that in all blocks.
  static std::pair<Choice, Choice> ends_of(const Choice& choice);
  // Returns the choices whose programs the choice's table is made from.
  std::vector<Choice> programs_of(const Choice& choice) const;
  Entry look(const Choice& choice);
  // Says what runs again; leaves out what saves nothing.
  void compare_with_none(const Choice& choice, Entry& entry);
  // From a program of its own, without Layers::parameters; by any thread, unless scripts define
  // methods.
  Entry make(const Choice& choice);
  // Returns Layers::parameters of layers that were just made.
  int number(const Layers& layers);

  const Folded& folded_;
  Samples samples_;
  const compile::StepSpec& spec_;
  const Pins& pins_;
  bool eight_bits_;
  OpCosts& costs_;
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
