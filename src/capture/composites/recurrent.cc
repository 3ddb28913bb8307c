// LSTM and GRU choose fused cells that only CUDA has; here they are ordinary ops.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "capture/composites/composite.h"

namespace perigee::tracing {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

// Gates [b, 4h] in the order input, forget, cell, output.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates,
                                                         const at::Tensor& hidden_gates,
                                                         const at::Tensor& cell,
                                                         const OptionalTensor& input_bias,
                                                         const OptionalTensor& hidden_bias) {
  const auto gates =
      (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const auto next = gates[1].sigmoid() * cell + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * next.tanh(), next, at::empty({0}, cell.options())};
}

// Gates [b, 3h] in the order reset, update, new.
std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates,
                                            const at::Tensor& hidden_gates,
                                            const at::Tensor& hidden,
                                            const OptionalTensor& input_bias,
                                            const OptionalTensor& hidden_bias) {
  const auto in = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto held = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const auto reset = (in[0] + held[0]).sigmoid(), update = (in[1] + held[1]).sigmoid();
  const auto fresh = (in[2] + reset * held[2]).tanh();
  return {(hidden - fresh) * update + fresh, at::empty({0}, hidden.options())};
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_gru_cell", gru_cell);
}

}  // namespace
}  // namespace perigee::tracing
