// The adapters of a run, and its weights with the adapters merged into them.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "graph/adapters/adapters.h"

namespace perigee::checkpoint {

// Returns the adapters of the run's plan.json; nothing where its checkpoint has none. Throws Error
// where the checkpoint has adapters, but the plan does not tell their scale.
std::optional<graph::Adapters> adapters_of_run(const std::string& run,
                                               const Checkpoint& checkpoint);

// Throws Error where the run's plan has other scales of its adapters than `adapters`, with which the
// checkpoint's products would have other values. Passes where one of them has no adapters.
void require_scale_of_run(const std::optional<graph::Adapters>& adapters,
                          const Checkpoint& checkpoint);

// Returns whether the tensor is A or B of an adapter.
bool is_of_adapter(const std::optional<graph::Adapters>& adapters, std::string_view name);

// Returns weight + scale b a, computed in float64 and rounded once.
at::Tensor merged(const at::Tensor& weight, const at::Tensor& a, const at::Tensor& b, double scale);

// Reads a whole tensor.
at::Tensor read_whole(const Checkpoint& checkpoint, const StoredTensor& tensor);

// Reads a whole weight, an adapted one merged with its adapter.
at::Tensor read_merged(const Checkpoint& checkpoint, const StoredTensor& tensor,
                       const std::optional<graph::Adapters>& adapters);

// Writes the full weights under their names to one safetensors file, as export_checkpoint does,
// with the adapters merged.
void export_merged(const Checkpoint& checkpoint, const graph::Adapters& adapters,
                   const std::string& file);

}  // namespace perigee::checkpoint
