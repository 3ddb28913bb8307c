// Where the instructions of a folded program belong, and which of them compute gradients
// of weights.
#pragma once

#include <set>

#include "compile/program.h"
#include "search/layers/scopes.h"

namespace perigee::search {

class InstructionPlaces {
 public:
  // Both are kept by reference.
  InstructionPlaces(const compile::Program& program, const LayerScopes& scopes);

  // Returns the place of the instruction's scope. Ops of the loss, which belongs to no module, are
  // of the epilogue.
  const Where& where(const compile::Instruction& instruction) const;
  // Returns whether only gradients of weights depend on the backward instruction: neither another
  // layer nor another layer's backward pass reads its results, directly or indirectly.
  bool is_weight_gradient(const compile::Instruction& instruction) const {
    return weight_gradients_.contains(&instruction);
  }

 private:
  void find_late();
  void find_weight_gradients();

  const compile::Program& program_;
  const LayerScopes& scopes_;
  std::set<const compile::Instruction*> late_, weight_gradients_;
};

// Returns the value that v views, or v.
graph::ValueId root_of(const compile::Program& program, graph::ValueId v);

}  // namespace perigee::search
