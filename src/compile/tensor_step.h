// adafactor and muon: optimizers that look at a parameter as a whole, however it is cut. Ranks hold
// boxes of it; what they need of all of it is summed over the axes that it is cut on.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "compile/compile.h"
#include "compile/passes.h"
#include "graph/graph.h"

namespace perigee::compile {

// What is kept for a parameter: a tensor that lies as the parameter does, or one of a shape of its
// own that every rank has whole which has a part of the parameter.
struct TensorState {
  std::string name;
  bool whole = false;
  std::vector<int64_t> shape;  // of a whole one
};

// Returns whether the optimizer is one of these.
bool steps_by_tensor(const StepSpec& spec);

// Which state each parameter has, by the optimizer that steps it.
//   adafactor (Shazeer and Stern 2018): of two dims or more, "row_var" and "col_var", the means
//   over
//     the last and the last but one; of less, "variance". Formulas are torch.optim.Adafactor's.
//   muon (Jordan et al. 2024): of matrices in hidden layers "momentum_buffer"; adamw's states for
//     embeddings, heads (what makes the scores of classes) and all that has not two dims.
class TensorStates {
 public:
  // Any graph of the model's, before or after casts and rewrites. Throws Error where a group wants
  // muon to step what is no matrix.
  TensorStates(const graph::Graph& graph, const StepSpec& spec);
  std::vector<TensorState> of(const std::string& parameter) const;
  bool by_muon(const std::string& parameter) const { return by_muon_.contains(parameter); }

 private:
  const graph::Graph& graph_;
  const StepSpec& spec_;
  std::set<std::string> by_muon_;
};

// Gives the states their values and bindings, once Gradients::pieces are there.
void make_tensor_states(Draft& draft, const Source& source, Gradients& gradients);

// What the step's instructions read.
struct StepValues {
  ValueId scale;  // of the gradients; NaN where a guarded step is to change nothing
  ValueId step;
  bool guarded = false;
};

// Appends the step of all pieces. `learning_rate` returns the value of a group's, `weight_decay`
// what stands for a group's: a number or a value.
void make_tensor_step(Draft& draft, const Source& source, const Gradients& gradients,
                      const StepValues& values,
                      const std::function<ValueId(int32_t)>& learning_rate,
                      const std::function<graph::Arg(int32_t)>& weight_decay,
                      std::vector<DraftInstruction>& out);

}  // namespace perigee::compile
