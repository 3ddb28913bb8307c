// RankTrainer::initialise: first values of a rank's parameters and buffers.
#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "base/log_format.h"
#include "checkpoint/weights/adapter_folder.h"
#include "checkpoint/weights/initial_weights.h"
#include "exec/tensor.h"
#include "train/ranks/share.h"
#include "train/step/initial_values.h"
#include "train/step/rank_trainer.h"

namespace perigee::train {
namespace {

using Kind = compile::Binding::Kind;
using graph::Input;

bool is_weight(const Input& input) {
  return input.kind == Input::Kind::parameter || input.kind == Input::Kind::buffer;
}

std::vector<checkpoint::WantedTensor> wanted_tensors(const Blueprint& blueprint) {
  std::vector<checkpoint::WantedTensor> wanted;
  for (const auto& input : blueprint.training.inputs) {
    if (!is_weight(input)) continue;
    const auto& type = blueprint.training.type(input.value);
    wanted.push_back({input.name, type.dtype, type.shape});
    for (const auto& [other, first] : blueprint.tied) {
      if (first == input.name) wanted.back().aliases.push_back(other);
    }
  }
  return wanted;
}

// Returns the ranges of the tensor that the binding holds.
std::vector<mesh::Range> ranges_of(const compile::Binding& binding, const graph::TensorType& type) {
  auto ranges = binding.ranges;
  for (size_t d = ranges.size(); d < type.shape.size(); ++d) ranges.push_back({0, type.shape[d]});
  return ranges;
}

}  // namespace

void RankTrainer::initialise(const std::function<at::Tensor(const std::string&)>& values,
                             const Done& done) {
  const auto& program = executor_->program();
  std::optional<checkpoint::InitialWeights> weights;
  if (!job_.train.weights.empty()) {
    auto wanted = wanted_tensors(blueprint_);
    std::erase_if(wanted, [&](const auto& tensor) {
      return graph::is_adapter(blueprint_.training, tensor.name);
    });
    weights.emplace(job_.train.weights, job_.model, wanted, job_.train.initialise);
    if (communicator_.rank() == 0) log::info("{}", weights->report());
  }
  std::optional<checkpoint::AdapterValues> adapter;
  if (const auto& folder = job_.train.adapter; !folder.empty()) {
    if (!blueprint_.plan.adapters) {
      fail("train",
           "train.adapter = \"{}\" needs adapters, but the plan has none: add the method "
           "lora to the strategy",
           folder);
    }
    adapter.emplace(folder, job_.model, *blueprint_.plan.adapters, wanted_tensors(blueprint_));
    if (communicator_.rank() == 0) log::info("{}", adapter->report());
  }
  int64_t part = 0;
  for (const auto& input : blueprint_.training.inputs) {
    done(part++, std::ssize(blueprint_.training.inputs));
    if (!is_weight(input)) continue;
    std::vector<const compile::Binding*> held;  // several where it is kept in pieces
    for (const auto& binding : program.bindings) {
      const bool same = binding.name == input.name &&
                        (binding.kind == Kind::parameter || binding.kind == Kind::buffer);
      if (same) held.push_back(&binding);
    }
    const bool adapts = adapter && adapter->has(input.name);
    const bool stored = adapts || (weights && weights->has(input.name));
    const auto whole = stored ? at::Tensor() : first_value(input, values, !held.empty());
    for (const auto* binding : held) {
      const auto target = executor_->tensor(*binding);
      const auto ranges = ranges_of(*binding, blueprint_.training.type(input.value));
      if (adapts) {
        adapter->read(input.name, ranges, target);
      } else if (stored) {
        weights->read(input.name, ranges, target);
      } else {
        target.copy_(part_of(whole, binding->ranges));
      }
    }
  }
  if (weights) {
    log::debug("rank {} has read {} of {} bytes of the tensors in {}", communicator_.rank(),
               weights->bytes_read(), weights->bytes(), job_.train.weights);
  }
}

at::Tensor RankTrainer::first_value(const graph::Input& input,
                                    const std::function<at::Tensor(const std::string&)>& values,
                                    bool wanted) {
  if (!job_.train.initialise && !graph::is_adapter(blueprint_.training, input.name)) {
    fail("train",
         "train.initialise = false leaves first values to train.weights or a checkpoint "
         "(--resume), but {} comes from neither",
         input.name);
  }
  // A module that is not deferred has values of its own; its adapters do not.
  if (blueprint_.init.find_output(graph::Output::Kind::result, input.name)) {
    if (!wanted) return {};
    return initial_value(blueprint_.init, input.name, static_cast<uint64_t>(job_.seed));
  }
  const bool root = communicator_.rank() == 0;
  const auto& type = blueprint_.training.type(input.value);
  auto whole = at::empty(type.shape, exec::scalar_type(type.dtype));
  if (root) {
    const auto value = values ? values(input.name) : at::Tensor();
    if (!value.defined())
      fail("train", "every parameter needs a first value, but {} has none", input.name);
    if (value.sizes() != whole.sizes()) {
      fail("train", "the module must be that of the plan, but {} is [{}] in place of [{}]",
           input.name, fmt::join(value.sizes(), ", "), fmt::join(whole.sizes(), ", "));
    }
    whole.copy_(value);
  }
  everyone(communicator_)
      ->run({.kind = exec::Collective::Kind::broadcast,
             .input = root ? whole : at::Tensor(),
             .output = whole});
  return whole;
}

}  // namespace perigee::train
