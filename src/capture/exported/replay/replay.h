// Runs an exported model's graph through LibTorch's dispatcher: eagerly, or under capture, where
// the ops are recorded and autograd gives the backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capture/exported/program.h"

namespace perigee::exported {

// The results by name, in the model's order, and the buffers' new values.
struct Replayed {
  std::vector<std::pair<std::string, at::Tensor>> results, buffers;
};

// Sees the values so far, by slot, before call `index` runs. May change the call's arguments.
using BeforeCall =
    std::function<void(size_t index, Call& call, std::span<const c10::IValue> values)>;

// Runs the program on its inputs, in the order of `program.inputs`. Throws Error for a call whose
// arguments do not fit its op, and the errors of ops.
Replayed replay(const Program& program, const std::vector<at::Tensor>& inputs,
                const BeforeCall& before = {});

}  // namespace perigee::exported
