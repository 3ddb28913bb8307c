// A model plugin, as a user writes one. `config` is the job's [model] table as JSON.
#include <torch/torch.h>

#include "capture/capture.h"

namespace {

struct Net : torch::nn::Module {
  torch::nn::Linear in{4, 8}, out{8, 3};
  explicit Net(at::ScalarType dtype) {
    register_module("in", in);
    register_module("out", out);
    to(dtype);
  }
  at::Tensor forward(const at::Tensor& x) { return out(torch::relu(in(x))); }
};

perigee::Model make(const std::string& config) {
  if (config == "broken") throw std::runtime_error("no such width");
  if (config == "empty") return {};
  const bool wide = config.find("\"float64\"") != config.npos;
  const auto net = perigee::deferred<Net>(wide ? torch::kFloat64 : torch::kFloat32);
  return {net, [net](const perigee::Batch& batch) {
            const auto y = net->forward(batch.at("x"));
            return perigee::Result{torch::mse_loss(y, batch.at("y")), {{"y", y}}};
          }};
}

}  // namespace

PERIGEE_MODEL(make)
