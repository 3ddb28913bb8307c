// Above autograd: a mode on the DeferredInit key that sees every op that the model calls. It
// replaces CPU tensors by their capture twins and sends factories to the capture device, so that an
// unmodified CPU module is captured.
//
// Ops on plain CPU tensors only (torch::tensor({1, 2}), tables) run at once on the CPU. Their
// results become constants of the graph where an op combines them with a capture tensor. Random ops
// never run at once.
#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <fmt/ranges.h>
#include <torch/library.h>

#include <algorithm>

#include "base/fail.h"
#include "capture/composites/losses.h"
#include "capture/deferred.h"
#include "capture/device/tensor.h"
#include "capture/device/views.h"
#include "capture/record/op.h"
#include "capture/record/session.h"

namespace perigee::tracing {
namespace {

// A call as seen above autograd.
struct Call {
  const c10::OperatorHandle& op;
  torch::jit::Stack* stack;
  size_t first;  // of the arguments on the stack

  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op(op), stack(stack), first(stack->size() - op.schema().arguments().size()) {}

  const std::vector<c10::Argument>& arguments() const { return op.schema().arguments(); }
  c10::IValue& value(size_t i) const { return (*stack)[first + i]; }
  bool writes(size_t i) const {
    const auto* alias = arguments()[i].alias_info();
    return alias && alias->isWrite();
  }
};

// An explicit device = CPU keeps `empty` there, when it is small: LibTorch's literals write to such
// a tensor's memory.
bool stays_on_cpu(const Call& call, const c10::Device& device) {
  constexpr int64_t largest_literal = 1 << 20;
  if (!device.is_cpu() || call.op.schema().name() != "aten::empty") return false;
  int64_t numel = 1;
  if (!call.value(0).isIntList()) return false;
  for (auto size : call.value(0).toIntVector()) numel *= size;
  return numel <= largest_literal;
}

// Sends a factory (no tensor argument) to the capture device. Returns false where it stays.
bool redirect_factory(const Call& call) {
  for (size_t i = 0; i < call.arguments().size(); ++i) {
    if (call.arguments()[i].name() != "device") continue;
    auto& value = call.value(i);
    if (value.isDevice() && stays_on_cpu(call, value.toDevice())) return false;
    if (value.isDevice() && value.toDevice().is_meta()) return false;
    value = capture_device;
    return true;
  }
  return false;
}

void replace_by_twins(Session& session, const Call& call) {
  for (size_t i = 0; i < call.arguments().size(); ++i) {
    auto& value = call.value(i);
    each_tensor(value, [&](const at::Tensor& tensor) {
      return tensor.is_cpu() ? session.twins.get(session, tensor) : tensor;
    });
    if (value.isDevice() && value.toDevice().is_cpu()) value = capture_device;
  }
}

// Runs an op on plain CPU tensors. Throws Error for a write to memory that existed before the
// capture, which would happen once instead of in every step.
void run_at_once(Session& session, const Call& call) {
  for (size_t i = 0; i < call.arguments().size(); ++i) {
    if (!call.writes(i) || !call.value(i).isTensor()) continue;
    const auto& tensor = call.value(i).toTensor();
    if (tensor.defined() && !session.twins.is_local(tensor)) {
      fail("capture",
           "a model may write to its parameters' and buffers' values only, but {} writes to a "
           "tensor of shape [{}] that is neither: register it with register_buffer{}",
           c10::toString(call.op.operator_name()), fmt::join(tensor.sizes(), ", "),
           session.where());
    }
  }
  const size_t returns = call.op.schema().returns().size();
  const c10::impl::ExcludeDispatchKeyGuard as_it_is(c10::DispatchKey::Functionalize);
  call.op.callBoxed(call.stack);
  for (size_t r = call.stack->size() - returns; r < call.stack->size(); ++r) {
    each_tensor((*call.stack)[r], [&](const at::Tensor& tensor) {
      session.twins.mark_local(tensor);
      return tensor;
    });
  }
}

// Replaces as_strided above autograd, so that the gradient is that of the views. Returns false for
// all other ops, and for strides that are no chain of views.
bool call_as_strided(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (op.schema().name() != "aten::as_strided") return false;
  const size_t first = stack->size() - 4;
  const auto self = (*stack)[first].toTensor();
  const auto& offset = (*stack)[first + 3];
  const auto view = strided_view(
      self, Geometry::of(self),
      {(*stack)[first + 1].toIntVector(), (*stack)[first + 2].toIntVector(),
       offset.isNone() ? self.storage_offset() : offset.toInt()});
  if (!view.defined()) return false;
  stack->resize(first);
  stack->emplace_back(view);
  return true;
}

void mode(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  Session* session = Session::current();
  if (!session) return op.callBoxed(stack);
  session->begin_call();
  const Call call(op, stack);
  bool any = false, plain = true;
  for (size_t i = 0; i < call.arguments().size(); ++i) {
    if (call.value(i).isDevice()) plain = plain && !call.value(i).toDevice().is_privateuseone();
    each_tensor(call.value(i), [&](const at::Tensor& tensor) {
      any = true;
      plain = plain && tensor.is_cpu() && !session->twins.have_memory_of(tensor);
      return tensor;
    });
  }
  const bool random = op.hasTag(at::Tag::nondeterministic_seeded);
  try {
    if (any ? plain && !random : !redirect_factory(call)) return run_at_once(*session, call);
    if (session->purpose == Session::Purpose::deferred) return call_on_fakes(*session, op, stack);
    replace_by_twins(*session, call);
    if (!call_loss(op, stack) && !call_as_strided(op, stack)) op.callBoxed(stack);
  } catch (...) {
    session->remember(std::current_exception());
    throw;
  }
}

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&mode>());
}

}  // namespace
}  // namespace perigee::tracing
