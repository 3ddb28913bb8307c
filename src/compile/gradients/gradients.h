// Gradients of a rank: parameters, the buckets that they are reduced in, the pieces that it steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "compile/draft/draft.h"
#include "compile/gradients/loss_scale.h"
#include "graph/graph.h"
#include "mesh/axis_set.h"
#include "mesh/placement.h"
#include "plan/units.h"

namespace perigee::compile {

// Parameters with adjacent gradients, which are reduced and stepped together.
struct Bucket {
  graph::DType dtype = graph::DType::float32;
  graph::DType gradient_dtype = graph::DType::float32;
  int32_t group = 0;            // of the optimizer
  mesh::AxisSet axes;           // the gradients are Partial on these
  std::vector<int64_t> stages;  // that have these parameters, where several do
  size_t section = 0;           // of Source::sections: makes the last gradient
  std::string reduce = "sum";
  int32_t channel = 0;            // which of the streams over the axes reduces it
  std::vector<int32_t> averages;  // of Plan::averages: those of its parameters
  // Indices into Gradients::parameters, in the order in which their gradients become ready.
  std::vector<int32_t> parameters;
  int64_t elements = 0;
  ValueId weights, gradients;   // flat [elements]
  std::vector<ValueId> states;  // flat [elements], like optimizer_states()
  // Where the gradients are reduced over `axes` in a lower precision: `gradients` (of a
  // unit: `part`) rounded.
  ValueId low;

  // Of a unit (plan::Unit; units.cc): all flat, the whole padded to parts * part elements. `axes`
  // are those, other than the unit's own, on which every gradient is Partial.
  int32_t flat = -1;  // index into Gradients::flats
  int level = 0;      // the unit's; 0: of no unit
  // Instead of `axes`: the whole gradients are reduced over these before the unit's own reduction.
  mesh::AxisSet early_axes;
  // Of a unit that is stored in parts: the whole weights while they are used; `weights` is
  // the part.
  ValueId gathered;
  ValueId own;   // this rank's part of the weights
  ValueId part;  // this rank's part of the reduced gradients

  // Weights of one optimizer group that this rank steps in one instruction.
  struct Share {
    int32_t group = 0;
    ValueId weights, gradients;
    std::vector<ValueId> states;  // like optimizer_states()
    // Where new weights are rounded at random: numbers drawn by element of the whole parameter, and
    // the arguments of the perigee::random that draws them.
    ValueId noise;
    std::vector<std::pair<std::string, graph::Arg>> draw;
  };
  std::vector<Share> shares;
};

// The contiguous box of a parameter that the rank holds and steps.
struct HeldPiece {
  int32_t parameter = -1;           // of Gradients::parameters
  std::vector<mesh::Range> ranges;  // of the whole parameter
  ValueId weights, gradients;       // shaped as the box
  std::vector<ValueId> states;      // shaped as the box: those of TensorStates that are not whole
};

struct Gradients {
  struct Parameter {
    int32_t input = -1;       // of the local graph
    graph::ValueId gradient;  // of the local graph; undefined: of a unit, and not trained
    // Summands of pipeline parts whose backward passes run earlier.
    std::vector<graph::ValueId> earlier;
    int32_t bucket = -1;
    int64_t offset = 0;                 // elements from the bucket's start
    mesh::AxisSet shard_axes;           // the gradient's norm is summed over these
    mesh::AxisSet early_axes;           // of a unit: Partial on these, unlike others of the unit
    ValueId weight, value;              // views of the bucket: the parameter and its gradient
    std::vector<ValueId> whole_states;  // those of TensorStates that every rank has whole

    // Takes the graph's next output of this gradient.
    void add(graph::ValueId v) {
      if (gradient.defined()) earlier.push_back(gradient);
      gradient = v;
    }
    const graph::ValueId& first() const { return earlier.empty() ? gradient : earlier.front(); }
  };
  std::vector<Parameter> parameters;  // of units, then in the order of the graph's inputs
  std::vector<Bucket> buckets;        // of units first: one for each of `flats`
  std::vector<plan::FlatUnit> flats;
  std::vector<HeldPiece> pieces;  // of optimizers that update tensor by tensor
  LossScaleState loss_scale;
  // Of a guarded step, by input of the graph: a buffer that the step writes, and its value before.
  struct KeptBuffer {
    ValueId buffer, before;
  };
  std::map<size_t, KeptBuffer> kept_buffers;
};

}  // namespace perigee::compile
