// The example of runtime/embedding.md, with the module and the data of an application.
#include <perigee/perigee.h>
#include <torch/torch.h>

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear layer{nullptr};

  explicit Net(int64_t width) { layer = register_module("layer", torch::nn::Linear(width, 1)); }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
};

}  // namespace

#include "example.inc"

perigee::Batch Mine::at(int64_t, perigee::Range samples) {
  return {{"x", torch::ones({samples.length, 64})}, {"y", torch::ones({samples.length, 1})}};
}
