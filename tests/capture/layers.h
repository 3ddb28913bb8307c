// The cases of every layer class of torch::nn, by group. A case's name starts with its class, so
// that the test of coverage can hold them against LibTorch's headers.
#pragma once

#include <vector>

#include "tests/capture/support.h"

namespace perigee::test {

std::vector<Layer> linear_layers();
std::vector<Layer> convolution_layers();
std::vector<Layer> norm_layers();
std::vector<Layer> pooling_layers();
std::vector<Layer> padding_layers();
std::vector<Layer> upsample_layers();
std::vector<Layer> activation_layers();
std::vector<Layer> container_layers();
std::vector<Layer> embedding_layers();
std::vector<Layer> recurrent_layers();
std::vector<Layer> transformer_layers();
std::vector<Layer> regression_losses();
std::vector<Layer> binary_losses();
std::vector<Layer> margin_losses();
std::vector<Layer> label_losses();
std::vector<Layer> random_layers();

// Layers whose work depends on values. They have no graph.
std::vector<Layer> refused_layers();

}  // namespace perigee::test
