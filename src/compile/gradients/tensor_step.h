// Optimizers that update a whole parameter at once (optim::UpdateKind::factored,
// orthogonalized). Each rank holds pieces of it; sums over the parameter are all-reduced over
// the axes that shard it.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/draft/source.h"
#include "compile/gradients/elementwise_step.h"
#include "compile/gradients/gradients.h"
#include "graph/graph.h"

namespace perigee::compile {

// An optimizer's state for a parameter: of the parameter's shape and placements, or of a shape of
// its own and whole on every rank that holds a piece of the parameter.
struct TensorState {
  std::string name;
  bool whole = false;
  std::vector<int64_t> shape;  // of a whole one
};

// Returns whether the optimizer updates whole parameters.
bool steps_by_tensor(const StepSpec& spec);

// The states of each parameter, by the kind of its update.
//   factored: of parameters of two dims or more the first two states of the description, whole: the
//     means over the last dim and over the last but one; of other parameters the third.
//   orthogonalized: the description's state for matrices of hidden layers; the states of
//     optim::Description::others for embeddings, heads (whose product is the logits) and parameters
//     that are not matrices.
class TensorStates {
 public:
  // `graph`: the model's, before or after casts and rewrites. Throws Error where a group assigns a
  // parameter that is not a matrix to the orthogonalized update.
  TensorStates(const graph::Graph& graph, const StepSpec& spec);
  std::vector<TensorState> of(const std::string& parameter) const;
  bool is_orthogonalized(const std::string& parameter) const {
    return orthogonalized_.contains(parameter);
  }

 private:
  const graph::Graph& graph_;
  const StepSpec& spec_;
  const optim::Description* optimizer_;  // nullptr: none
  std::set<std::string> orthogonalized_;
};

// Makes the states' values and bindings, for all of Gradients::pieces.
void make_tensor_states(Draft& draft, const Source& source, Gradients& gradients);

// Appends the updates of all pieces. `learning_rate` returns the value of a group's learning rate,
// `weight_decay` the number or value of a group's weight decay.
void make_tensor_step(Draft& draft, const Source& source, const Gradients& gradients,
                      const StepValues& values,
                      const std::function<ValueId(int32_t)>& learning_rate,
                      const std::function<graph::Arg(int32_t)>& weight_decay,
                      std::vector<DraftInstruction>& out);

}  // namespace perigee::compile
