// Below autograd: one kernel for all ops of the capture device. It finds the results' shapes,
// writes a node and returns tensors that stand for its results. No op runs.
#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/ranges.h>

#include "base/fail.h"
#include "capture/device/device.h"
#include "capture/device/tensor.h"
#include "capture/record/op.h"
#include "capture/record/session.h"

namespace perigee::tracing {
namespace {

// Returns the tensor of which result r is a view, or an undefined one. It decides only which
// storage the result has for LibTorch.
at::Tensor viewed(const c10::FunctionSchema& schema, size_t r, const Values& values) {
  const auto* alias = schema.returns()[r].alias_info();
  if (!alias || values.size() == 0 || !values[0].isTensor()) return {};
  return captured(values.tensor(0)) ? values.tensor(0) : at::Tensor();
}

void check_allowed(const Session& session, const Op& op) {
  if (op.refusal) {
    fail("capture", "{} cannot be in a graph: {}{}", op.name, op.refusal, session.where());
  }
  if (op.random && !op.canonical) {
    fail("capture",
         "random numbers must be uniform, normal, bernoulli, integer or exponential, but "
         "got {}{}",
         op.name, session.where());
  }
}

// Answers equal(self, other) where the session knows the result. Returns whether it does.
bool answer_equal(const Session& session, torch::jit::Stack* stack) {
  const size_t first = stack->size() - 2;
  const auto known = session.known_equal((*stack)[first].toTensor(),
                                         (*stack)[first + 1].toTensor());
  if (!known) return false;
  stack->resize(first);
  stack->emplace_back(*known);
  return true;
}

void record(Session& session, const Op& op, torch::jit::Stack* stack) {
  if (op.name == "aten::equal" && answer_equal(session, stack)) return;
  check_allowed(session, op);
  const auto& schema = op.handle.schema();
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  const Values values(schema, std::span(*stack).subspan(first));
  Recorded call{op, values, infer_shapes(session, op, values)};
  const auto ids = op.canonical ? op.canonical(session, call) : emit_call(session, call);

  // Results in the schema's form: tensors, or lists of them.
  std::vector<c10::IValue> out;
  size_t next = 0;
  for (size_t r = 0; r < schema.returns().size(); ++r) {
    const auto share = viewed(schema, r, values);
    const auto make = [&](size_t i) {
      return ids[i].defined() ? make_capture_tensor(call.results[i], ids[i], session.id, share)
                              : at::Tensor();
    };
    if (schema.returns()[r].type()->kind() == c10::TypeKind::ListType) {
      c10::List<at::Tensor> list;
      while (next < ids.size()) list.push_back(make(next++));
      out.emplace_back(std::move(list));
    } else {
      out.emplace_back(make(next++));
    }
  }
  stack->resize(first);
  for (auto& value : out) stack->push_back(std::move(value));
}

}  // namespace

void record_kernel(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  auto& session = session_for(handle);
  c10::impl::ExcludeDispatchKeyGuard alone(
      c10::DispatchKeySet({c10::DispatchKey::DeferredInit, c10::DispatchKey::Functionalize}) |
      c10::autograd_dispatch_keyset_with_ADInplaceOrView);
  try {
    record(session, op_of(handle), stack);
  } catch (...) {
    session.remember(std::current_exception());
    throw;
  }
}

}  // namespace perigee::tracing
