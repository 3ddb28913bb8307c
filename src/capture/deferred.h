// Deferred construction: tensors that look like CPU tensors to the model. Their storage has no
// memory and refers to the value of an init graph that initialises it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>
#include <vector>

#include "capture/record/session.h"

namespace perigee::tracing {

// Storage without memory. Touching it throws.
struct DeferredStorage final : c10::StorageImpl {
  explicit DeferredStorage(int64_t bytes);

  std::shared_ptr<const graph::Graph> init;  // set when the construction is over
  graph::ValueId value;                      // in `init`
};

// Returns the tensor's storage where it is deferred, else nullptr.
const DeferredStorage* deferred_storage(const at::Tensor& tensor);
inline bool is_deferred(const at::Tensor& tensor) { return deferred_storage(tensor) != nullptr; }

// Runs an op of a deferred construction: on the twins, with results as deferred CPU tensors.
void call_on_fakes(Session& session, const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Computes a deferred tensor that is no parameter or buffer (a table) inside the session's graph.
// Throws Error where it is random: it would be drawn anew in every step.
graph::ValueId inline_deferred(Session& session, const at::Tensor& tensor);

// Returns one graph that computes all deferred tensors, as results of those names.
graph::Graph init_graph(const std::vector<std::pair<std::string, at::Tensor>>& tensors);

}  // namespace perigee::tracing
