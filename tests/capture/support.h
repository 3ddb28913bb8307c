// Parity of capture with eager autograd: a model is captured, the graph is evaluated by the
// reference interpreter, and loss, results, gradients and new buffer values are compared.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "capture/capture.h"
#include "exec/reference/reference.h"
#include "tests/support/torch_test.h"

namespace perigee::test {

// Returns the parameters, buffers and batch by name, as copies.
exec::Tensors inputs_of(torch::nn::Module& module, const Captured& captured, const Batch& batch);

// Evaluates the captured graph.
exec::Tensors evaluate(torch::nn::Module& module, const Captured& captured, const Batch& batch);

// Runs the model eagerly and returns what `evaluate` returns. The module's buffers change.
exec::Tensors eager(torch::nn::Module& module, const Batch& batch, const Forward& forward);

// Returns the first difference above the tolerance (relative to 1 + the largest element), or "".
std::string difference(const exec::Tensors& expected, const exec::Tensors& got, double tolerance);

// Checks that graph and eager run (with the graph's random draws) agree in loss, results, gradients
// and new buffers, that no node writes and that none has strides. `tolerance`: as of difference.
void check_parity(torch::nn::Module& module, const Batch& batch, const Forward& forward,
                  double tolerance = 1e-12);

// A layer with its inputs. Floating inputs become parameters, so that gradients to them are
// compared too; the loss mixes all elements of all outputs.
struct Layer {
  using Run = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
  std::string name;
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> inputs;
  Run run;
};

// Returns the model of a layer: a module, a batch and a forward function.
struct LayerModel {
  std::shared_ptr<torch::nn::Module> module;
  Batch batch;
  Forward forward;
};
LayerModel model_of(const Layer& layer);

void check_layer(const Layer& layer, double tolerance = 1e-12);

// Returns a layer that calls holder->forward(inputs...).
template <size_t Inputs, class Holder>
Layer layer(std::string name, Holder holder, std::vector<at::Tensor> inputs) {
  holder->to(torch::kFloat64);
  auto run = [holder](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
    return [&]<size_t... I>(std::index_sequence<I...>)->std::vector<at::Tensor> {
      return {holder->forward(in[I]...)};
    }
    (std::make_index_sequence<Inputs>());
  };
  return {std::move(name), holder.ptr(), std::move(inputs), run};
}

// Returns float64 normal numbers from a fixed seed.
at::Tensor normal(at::IntArrayRef sizes);
// Returns float64 numbers in (0, 1).
at::Tensor uniform(at::IntArrayRef sizes);
// Returns int64 numbers in [0, below).
at::Tensor integers(int64_t below, at::IntArrayRef sizes);

}  // namespace perigee::test
