#include "cuda/ops/ops.h"

#include <ATen/ATen.h>

#include <map>
#include <string_view>

#include "base/fail.h"
#include "cuda/check.h"
#include "exec/ops/dispatcher.h"
#include "exec/reference/ops.h"

namespace perigee::cuda {
namespace {

// On a GPU LibTorch has the products with scales of rows that the reference computes on a CPU.
Kernel scaled_product(const Arguments& a, const OpContext& context) {
  return context.place.is_cuda() ? exec::dispatcher_kernel_on(context.place, a.op()) : Kernel();
}

}  // namespace

Kernel cuda_kernel(const exec::Op& op, const OpContext& context) {
  using Maker = Kernel (*)(const Arguments&, const OpContext&);
  static const std::map<std::string_view, Maker> own = {
      {"aten::_scaled_mm", scaled_product},
      {"aten::mm", product},
      {"aten::native_layer_norm", row_norm},
      {"aten::native_layer_norm_backward", row_norm_backward},
      {"aten::sum.dim_IntList", sum_over_dims},
      {"perigee::accumulate_", accumulate},
      {"perigee::addmm_", product_in_place},
      {"perigee::add_layer_norm", row_norm},
      {"perigee::add_rms_norm", row_norm},
      {"perigee::attention", attention},
      {"perigee::attention_backward", attention_backward},
      {"perigee::clip_scale", clip_scale},
      {"perigee::copy_", copy},
      {"perigee::cross_entropy", cross_entropy},
      {"perigee::cross_entropy_backward", cross_entropy_backward},
      {"perigee::dropout", dropout},
      {"perigee::examine_step_", examine_step},
      {"perigee::fp8_amax", fp8_amax},
      {"perigee::fp8_amax_rows", fp8_amax_rows},
      {"perigee::fp8_cast", fp8_cast},
      {"perigee::fp8_cast_amax", fp8_cast},
      {"perigee::fp8_cast_rows", fp8_cast_rows},
      {"perigee::full", full},
      {"perigee::gelu_backward_sum", gelu_backward_sum},
      {"perigee::layer_norm_backward_add", row_norm_backward},
      {"perigee::merge_attention", merge_attention},
      {"perigee::mm_gelu", activated_product},
      {"perigee::mm_gelu_backward", activated_product},
      {"perigee::random", random},
      {"perigee::reshape", reshape},
      {"perigee::restore_", restore},
      {"perigee::rms_norm", row_norm},
      {"perigee::rms_norm_backward", row_norm_backward},
      {"perigee::rms_norm_backward_add", row_norm_backward},
      {"perigee::rotary", rotary},
      {"perigee::rotary_backward", rotary_backward},
      {"perigee::scale_", scale},
      {"perigee::squared_norm", squared_norm},
      {"perigee::swiglu", swiglu},
      {"perigee::swiglu_backward", swiglu_backward},
      {"perigee::update_loss_scale_", update_loss_scale},
  };
  if (const auto found = own.find(op.name); found != own.end()) {
    if (auto kernel = found->second(Arguments(op), context)) return kernel;
  }
  if (auto kernel = optimizer(Arguments(op))) return kernel;
  if (auto kernel = exec::reference_op(op)) return kernel;
  return exec::dispatcher_kernel_on(context.place, op);
}

Element element_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return Element::float32;
    case at::kDouble:
      return Element::float64;
    case at::kBFloat16:
      return Element::bfloat16;
    case at::kHalf:
      return Element::float16;
    case at::kLong:
      return Element::int64;
    case at::kInt:
      return Element::int32;
    case at::kByte:
      return Element::uint8;
    case at::kBool:
      return Element::boolean;
    default:
      fail("exec", "Perigee's CUDA kernels do not support the type {}", c10::toString(type));
  }
}

bool is_computed(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || type == at::kBFloat16 || type == at::kHalf;
}

bool is_half(at::ScalarType type) { return type == at::kBFloat16 || type == at::kHalf; }

at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

void take_fault(Fault& reported) {
  const Fault fault = reported;
  reported = {};
  if (fault.kind == Fault::label) {
    fail_run("exec", "labels must be ignore_index or lie in [0, {}), but got {}", fault.limit,
             fault.value);
  }
}

void check_launch(const char* kernel) { check(calls().cudaGetLastError(), kernel); }

Rows rows_of(const at::Tensor& tensor, int64_t columns) {
  return {.rows = columns ? tensor.numel() / columns : 0, .columns = columns};
}

const void* data_or_null(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr() : nullptr;
}

}  // namespace perigee::cuda
