// Small models in float64 and their batches, drawn from LibTorch's generator.
#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "capture/capture.h"
#include "exec/reference/reference.h"
#include "plan/plan.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {

struct Model {
  std::shared_ptr<torch::nn::Module> module;
  Batch batch;
  Forward forward;
};

// By name: gpt, images (a small residual network), regression (a multilayer perceptron), recurrent,
// experts (a mixture). Called with the batch's rows.
const std::map<std::string, Model (*)(int64_t)>& models();

// A model that uses one module twice, in float32 or float64.
Model shared_module(int64_t rows, at::ScalarType dtype);

// A captured model and all that its graph reads: batch, parameters, buffers.
struct Given {
  graph::Graph graph;
  exec::Tensors inputs;
};
// The graph is that of one of the microbatches.
Given capture_model(const Model& model, int64_t microbatches = 1);

// Returns a number from low to high.
int64_t any(std::mt19937_64& random, int64_t low, int64_t high);

// Gives the plan, whose mesh is set, random placements for parameters, buffers and data, and for
// some intermediate values, among them Partial ones and shards in runs.
void place_randomly(plan::Plan& plan, const graph::Graph& graph, std::mt19937_64& random,
                    bool pin_values);

}  // namespace perigee::parity
