#include "capture/exported/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

namespace perigee::exported {
namespace {

using at::autocast::CastPolicy;
using OpNames = std::set<std::string>;

thread_local c10::DeviceType lists_device = c10::kCPU;

// Returns the names of a list of LibTorch: "softmax, int" is softmax.int.
OpNames names_of(std::initializer_list<const char*> list) {
  OpNames names;
  for (std::string name : list) {
    if (const auto comma = name.find(", "); comma != name.npos) name.replace(comma, 2, ".");
    names.insert(name);
  }
  return names;
}

#define PERIGEE_NAME(...) #__VA_ARGS__,

// LibTorch has no list for the CPU in a header; its other ops with a kernel compute in float32.
const OpNames kCpuLower = names_of({"_addmm_activation",
                                    "_convolution.deprecated",
                                    "_native_multi_head_attention",
                                    "addbmm",
                                    "addmm",
                                    "baddbmm",
                                    "bmm",
                                    "conv1d",
                                    "conv1d.padding",
                                    "conv2d",
                                    "conv2d.padding",
                                    "conv3d",
                                    "conv3d.padding",
                                    "conv_tbc",
                                    "conv_transpose1d",
                                    "conv_transpose2d.input",
                                    "conv_transpose3d.input",
                                    "linalg_vecdot",
                                    "linear",
                                    "matmul",
                                    "mkldnn_rnn_layer",
                                    "mm",
                                    "prelu",
                                    "scaled_dot_product_attention"});
const OpNames kCpuPromote = names_of({"cat", "index_copy", "index_copy.dimname", "stack"});
const OpNames kCudaLower = names_of({AT_FORALL_LOWER_PRECISION_FP(PERIGEE_NAME)});
const OpNames kCudaPromote = names_of({AT_FORALL_PROMOTE(PERIGEE_NAME)});
const OpNames kCudaWithType = names_of({AT_FORALL_FP32_SET_OPT_DTYPE(PERIGEE_NAME)});
// LibTorch composes them of ops that compute in float32 on both devices; captures keep them whole.
const OpNames kLosses = {"cross_entropy_loss", "nll_loss_nd"};

#undef PERIGEE_NAME

// Returns the policy of an op on the region's device, or nothing where it runs as it is.
std::optional<CastPolicy> policy_of(const c10::OperatorHandle& op) {
  const bool cpu = lists_device == c10::kCPU;
  const auto key = cpu ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
  const auto& [name, overload] = op.operator_name();
  if (!name.starts_with("aten::")) return std::nullopt;
  const auto plain = name.substr(6) + (overload.empty() ? "" : "." + overload);
  if (kLosses.contains(plain)) return CastPolicy::fp32;
  if (!op.hasKernelForDispatchKey(key)) return std::nullopt;
  if ((cpu ? kCpuLower : kCudaLower).contains(plain)) return CastPolicy::lower_precision_fp;
  if ((cpu ? kCpuPromote : kCudaPromote).contains(plain)) return CastPolicy::promote;
  if (!cpu && kCudaWithType.contains(plain)) return CastPolicy::fp32_set_opt_dtype;
  if (!cpu && name == "aten::norm") return CastPolicy::fp32_append_dtype;
  return CastPolicy::fp32;
}

// Calls f(tensor) for the tensors of an argument and replaces them by the results.
template <class F>
void each_tensor(c10::IValue& value, F f) {
  if (value.isTensor()) {
    value = f(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const auto& tensor : value.toTensorVector()) list.push_back(f(tensor));
    value = std::move(list);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& item : value.toOptionalTensorVector()) {
      list.push_back(item ? std::optional(f(*item)) : std::nullopt);
    }
    value = std::move(list);
  }
}

constexpr auto kHere = c10::DeviceType::PrivateUse1;

// The kernel of all ops on tensors of the capture device where autocast is enabled: LibTorch's
// wrappers (ATen/autocast_mode.h) without their types, which differ from device to device.
void cast(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto policy = policy_of(op);
  if (!policy) {
    const c10::DispatchKeySet below(c10::DispatchKeySet::FULL_AFTER,
                                    c10::DispatchKey::AutocastPrivateUse1);
    return op.redispatchBoxed(keys & below, stack);
  }
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  const auto& arguments = op.schema().arguments();
  const auto values = stack->end() - static_cast<std::ptrdiff_t>(arguments.size());
  const auto lower = at::autocast::get_autocast_dtype(kHere);
  const auto cast_all = [&](at::ScalarType type) {
    std::for_each(values, stack->end(), [&](c10::IValue& value) {
      each_tensor(value, [&](const at::Tensor& tensor) {
        return tensor.defined() ? at::autocast::cached_cast(type, tensor, kHere) : tensor;
      });
    });
  };
  const bool first_is_eligible = !arguments.empty() && values->isTensor() &&
                                 at::autocast::is_eligible(values->toTensor(), kHere);
  switch (*policy) {
    case CastPolicy::lower_precision_fp:
      cast_all(lower);
      break;
    case CastPolicy::fp32:
      cast_all(at::kFloat);
      break;
    case CastPolicy::promote: {
      auto widest = lower;
      std::for_each(values, stack->end(), [&](c10::IValue& value) {
        each_tensor(value, [&](const at::Tensor& tensor) {
          if (tensor.defined()) widest = at::autocast::prioritize(widest, tensor, kHere);
          return tensor;
        });
      });
      cast_all(widest);
      break;
    }
    case CastPolicy::fp32_set_opt_dtype:
      for (size_t i = 0; first_is_eligible && i < arguments.size(); ++i) {
        if (arguments[i].name() == "dtype" && values[i].isNone()) values[i] = at::kFloat;
      }
      break;
    case CastPolicy::fp32_append_dtype: {
      if (!first_is_eligible) break;
      const bool of_all = op.operator_name().overload_name == "Scalar";
      const auto typed = c10::Dispatcher::singleton().findSchemaOrThrow(
          "aten::norm", of_all ? "ScalarOpt_dtype" : "ScalarOpt_dim_dtype");
      stack->emplace_back(at::kFloat);
      return typed.callBoxed(stack);
    }
  }
  op.callBoxed(stack);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&cast>());
}

constexpr std::array kDevices = {kHere, c10::DeviceType::CPU, c10::DeviceType::CUDA};

}  // namespace

AutocastState::AutocastState() : caches_(at::autocast::is_autocast_cache_enabled()) {
  for (const auto device : kDevices) {
    before_.push_back(
        {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)});
  }
  enter(std::nullopt);
}

AutocastState::~AutocastState() {
  enter(std::nullopt);
  for (size_t i = 0; i < kDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kDevices[i], before_[i].enabled);
    at::autocast::set_autocast_dtype(kDevices[i], before_[i].type);
  }
  at::autocast::set_autocast_cache_enabled(caches_);
}

void AutocastState::enter(const std::optional<Autocast>& region) {
  const int outermost = region ? region->outermost : -1;
  if (outermost != outermost_) at::autocast::clear_cache();
  outermost_ = outermost;
  for (const auto device : kDevices) at::autocast::set_autocast_enabled(device, false);
  if (!region || !region->enabled) return;
  lists_device = region->device;
  for (const auto device : {kHere, region->device}) {
    at::autocast::set_autocast_dtype(device, region->type);
    at::autocast::set_autocast_enabled(device, true);
  }
  at::autocast::set_autocast_cache_enabled(region->caches);
}

}  // namespace perigee::exported
