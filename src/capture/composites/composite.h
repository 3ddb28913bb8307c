// Helpers of the composites: calls of perigee:: ops by name, below autograd.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/fail.h"
#include "capture/record/session.h"

namespace perigee::tracing {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Returns the typed handle of an op.
template <class Signature>
auto typed_op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

// Returns the tensor, or nothing where it is undefined.
inline std::optional<at::Tensor> optional(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

// Returns the tensor, undefined where there is none.
inline at::Tensor tensor_or_none(const std::optional<at::Tensor>& tensor) {
  return tensor.value_or(at::Tensor());
}

// Returns the key of a random op of the running capture.
inline int64_t random_key() { return Session::current()->next_random_key(); }

}  // namespace perigee::tracing
