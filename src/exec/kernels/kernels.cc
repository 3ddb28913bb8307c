#include "exec/kernels/kernels.h"

#include <ATen/Parallel.h>

#include <map>

#include "base/error.h"
#include "exec/ops/activated_product.h"
#include "exec/reference/ops.h"

#ifndef INTRA_OP_PARALLEL
#error "at::parallel_for is serial in code that is compiled without OpenMP (-fopenmp)"
#endif

namespace perigee::exec {

Kernel cpu_kernel(const Op& op) {
  using Maker = Kernel (*)(const Arguments&);
  static const std::map<std::string_view, Maker> fast = {
      {"aten::add.Tensor", kernels::add},
      {"aten::addmm", kernels::product_with_bias},
      {"aten::cat", kernels::join},
      {"aten::gelu", kernels::gelu},
      {"aten::gelu_backward", kernels::gelu_backward},
      {"aten::mm", kernels::product},
      {"aten::native_layer_norm", kernels::layer_norm},
      {"aten::native_layer_norm_backward", kernels::layer_norm_backward},
      {"aten::stack", kernels::join},
      {"perigee::accumulate_", kernels::accumulate},
      {"perigee::adafactor_", kernels::adafactor},
      {"perigee::adafactor_moments_", kernels::adafactor_moments},
      {"perigee::adafactor_sums_", kernels::adafactor_sums},
      {"perigee::add_layer_norm", kernels::layer_norm},
      {"perigee::add_rms_norm", kernels::rms_norm},
      {"perigee::addmm_", kernels::product_in_place},
      {"perigee::attention", kernels::attention},
      {"perigee::attention_backward", kernels::attention_backward},
      {"perigee::cached_attention", kernels::cached_attention},
      {"perigee::clip_scale", kernels::clip_scale},
      {"perigee::copy_", kernels::copy},
      {"perigee::cross_entropy", kernels::cross_entropy},
      {"perigee::cross_entropy_backward", kernels::cross_entropy_backward},
      {"perigee::dropout", kernels::dropout},
      {"perigee::embedding_backward_", kernels::embedding_backward_in_place},
      {"perigee::gelu_backward_sum", kernels::gelu_backward_sum},
      {"perigee::layer_norm_backward_add", kernels::layer_norm_backward},
      {"perigee::mm_", kernels::product_in_place},
      {"perigee::mm_gelu", kernels::activated_product},
      {"perigee::mm_gelu_backward", kernels::activated_product},
      {"perigee::examine_step_", kernels::examine_step},
      {"perigee::muon_", kernels::muon},
      {"perigee::muon_update_", kernels::muon_update},
      {"perigee::orthogonalize_", kernels::orthogonalize},
      {"perigee::reshape", kernels::reshape},
      {"perigee::restore_", kernels::restore},
      {"perigee::rms_norm", kernels::rms_norm},
      {"perigee::rms_norm_backward", kernels::rms_norm_backward},
      {"perigee::rms_norm_backward_add", kernels::rms_norm_backward},
      {"perigee::scale_", kernels::scale},
      {"perigee::squared_norm", kernels::squared_norm},
      {"perigee::rotary", kernels::rotary},
      {"perigee::rotary_backward", kernels::rotary_backward},
      {"perigee::swiglu", kernels::swiglu},
      {"perigee::swiglu_backward", kernels::swiglu_backward},
      {"perigee::update_loss_scale_", kernels::update_loss_scale},
  };
  if (const auto found = fast.find(op.name); found != fast.end()) {
    if (auto kernel = found->second(Arguments(op))) return kernel;
  }
  if (auto kernel = kernels::optimizer(Arguments(op))) return kernel;
  if (auto kernel = reference_op(op)) return kernel;
  return dispatcher_kernel(op);
}

}  // namespace perigee::exec
