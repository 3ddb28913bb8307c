// Schemas of the perigee:: ops that run as dispatcher ops (graph/ops.h defines them).
// Their CPU and CUDA kernels are in exec/ and cuda/. Ops whose result's shape is in the value's
// type (perigee::reshape, full, random, ...) have no schema: they are never dispatched.
#include <torch/library.h>

namespace {

TORCH_LIBRARY(perigee, m) {
  m.def("dropout(Tensor self, float p, int key) -> Tensor");
  // d_bias is undefined unless `bias_grad` is set.
  m.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? bias=None, bool causal=False, *, "
      "float scale, float p=0., int random_key=0, Tensor? documents=None, "
      "Tensor? key_documents=None) -> (Tensor output, Tensor logsumexp)");
  m.def(
      "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor? bias, "
      "Tensor output, Tensor logsumexp, bool causal=False, *, float scale, float p=0., "
      "int random_key=0, bool bias_grad=False, Tensor? documents=None, "
      "Tensor? key_documents=None) -> (Tensor d_query, Tensor d_key, Tensor d_value, "
      "Tensor d_bias)");
  m.def("rotary(Tensor self, Tensor cos, Tensor sin) -> Tensor");
  m.def("rotary_backward(Tensor grad, Tensor cos, Tensor sin) -> Tensor");
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor");
  m.def("swiglu_backward(Tensor grad, Tensor gate, Tensor up) -> (Tensor d_gate, Tensor d_up)");
  m.def("rms_norm(Tensor self, Tensor? weight=None, *, float eps) -> (Tensor output, Tensor rstd)");
  m.def(
      "rms_norm_backward(Tensor grad, Tensor self, Tensor? weight, Tensor rstd) -> "
      "(Tensor d_self, Tensor d_weight)");
  m.def(
      "add_rms_norm(Tensor self, Tensor other, Tensor? weight=None, *, float eps) -> (Tensor sum, "
      "Tensor output, Tensor rstd)");
  m.def(
      "rms_norm_backward_add(Tensor grad, Tensor self, Tensor? weight, Tensor rstd, Tensor other) "
      "-> (Tensor d_self, Tensor d_weight)");
  m.def(
      "add_layer_norm(Tensor self, Tensor other, int[] normalized_shape, Tensor? weight, "
      "Tensor? bias, float eps) -> (Tensor sum, Tensor output, Tensor mean, Tensor rstd)");
  m.def(
      "layer_norm_backward_add(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor mean, "
      "Tensor rstd, Tensor? weight, Tensor? bias, bool[3] output_mask, Tensor other) -> "
      "(Tensor d_input, Tensor d_weight, Tensor d_bias)");
  m.def(
      "gelu_backward_sum(Tensor grad_output, Tensor self, *, str approximate='none') -> "
      "(Tensor d_self, Tensor sum)");
  m.def(
      "cross_entropy(Tensor logits, Tensor target, Tensor? weight=None, int ignore_index=-100, "
      "float label_smoothing=0.) -> (Tensor losses, Tensor logsumexp)");
  m.def(
      "cross_entropy_backward(Tensor grad, Tensor logits, Tensor target, Tensor logsumexp, "
      "Tensor? weight=None, int ignore_index=-100, float label_smoothing=0.) -> Tensor");
  m.def("nll(Tensor self, Tensor target, Tensor? weight=None, int ignore_index=-100) -> Tensor");
  m.def(
      "nll_backward(Tensor grad, Tensor self, Tensor target, Tensor? weight=None, "
      "int ignore_index=-100) -> Tensor");
  m.def(
      "label_weight(Tensor target, Tensor? weight=None, int ignore_index=-100, *, "
      "ScalarType dtype) -> Tensor");
  m.def("step_average(Tensor self) -> Tensor");
  m.def(
      "expert_slots(Tensor expert, int experts, int places, bool dropless=False) -> (Tensor slot, "
      "Tensor counts)");
  m.def("dispatch(Tensor source, Tensor slot, int experts, int places) -> Tensor");
  m.def("combine(Tensor queue, Tensor slot) -> Tensor");
  m.def("grouped_mm(Tensor self, Tensor mat2, Tensor counts) -> Tensor");
  m.def("grouped_outer(Tensor self, Tensor grad, Tensor counts) -> Tensor");
}

}  // namespace
