// What one block of a model, and what stands before and behind the blocks, costs on one rank: times
// and bytes from a compiled program of the folded model, from which the costs of any number of
// blocks in any pipeline follow.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "search/choice.h"
#include "search/fold.h"
#include "search/op_cost.h"

namespace perigee::search {

// Of one microbatch on one rank, unless said otherwise. Seconds, bytes.
struct Layer {
  double forward = 0, backward = 0;  // backward: with what runs again
  double communication = 0;          // of both: what they wait for collectives within the layer
  double weights = 0;                // of parameters, as the rank stores them
  double gradients = 0;              // of their gradients
  double states = 0;                 // of the optimizer, and masters
  double saved = 0;                  // what the forward pass leaves to the backward pass
  double step = 0;                   // once a step: the optimizer
};

struct Layers {
  Layer first, block, last;  // before, one of, and behind the blocks
  double working = 0;        // memory beside all that, while a block's backward pass runs
  double crossing = 0;       // bytes that a block hands to the next
  bool measured = false;     // all times were
};

// Tables by what decides them: tensor ranks, sequence, checkpoint, samples of a microbatch.
// Programs are compiled for one sample and for the most, and with all blocks or none run again;
// costs between are taken to be linear.
class LayerTables {
 public:
  // All kept by reference. `samples` is what the folded graph was captured at.
  LayerTables(const Folded& folded, int64_t samples, const compile::StepSpec& spec,
              const Pins& pins, OpCosts& costs, compile::TraceSource& traces)
      : folded_(folded),
        samples_(samples),
        spec_(spec),
        pins_(pins),
        costs_(costs),
        traces_(traces) {}

  // Returns the table for the choice, or nullptr where the methods or the graph do not allow it;
  // `why` then says it.
  const Layers* find(const Choice& choice, std::string& why);

  // How many programs were compiled.
  size_t compiled() const { return tables_.size(); }

 private:
  struct Entry {
    Layers layers;
    std::string why;  // "" where there is a table
  };
  Entry look(const Choice& choice);
  Layers make(const Choice& choice) const;

  const Folded& folded_;
  int64_t samples_;
  const compile::StepSpec& spec_;
  const Pins& pins_;
  OpCosts& costs_;
  compile::TraceSource& traces_;
  std::map<std::string, Entry> tables_;
};

// Returns the pattern of the row ("blocks.*"), or "" for none.
std::string pattern_of(const std::vector<std::string>& blocks);

}  // namespace perigee::search
