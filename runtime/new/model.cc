// A model of your own: predicts the next token from the last one with a small MLP. Build it with
//     cmake -S . -B build && cmake --build build
// (a C++20 compiler, CMake and make are needed), and name build/model.so in job.toml. Perigee loads
// the plugin, captures one run of `forward` on tensors without memory, and trains the captured
// graph.
#include <perigee/capture/capture.h>
#include <torch/nn/functional.h>
#include <torch/nn/modules.h>

#include <nlohmann/json.hpp>

namespace {

namespace nn = torch::nn;

struct Net : nn::Module {
  Net(int64_t vocab, int64_t width)
      : embed(register_module("embed", nn::Embedding(vocab, width))),
        up(register_module("up", nn::Linear(width, 4 * width))),
        down(register_module("down", nn::Linear(4 * width, width))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))),
        head(register_module("head", nn::Linear(width, vocab))) {}

  // tokens: int64 [samples, sequence]; returns logits [samples, sequence, vocab].
  at::Tensor forward(const at::Tensor& tokens) {
    const auto x = embed(tokens);
    return head(norm(x + down(nn::functional::gelu(up(x)))));
  }

  nn::Embedding embed;
  nn::Linear up, down;
  nn::LayerNorm norm;
  nn::Linear head;
};

// `config` is the job's [model] table as JSON, with the keys of [model.options] under "options".
perigee::Model make(const std::string& config) {
  const auto options = nlohmann::json::parse(config).value("options", nlohmann::json::object());
  const auto net = perigee::deferred<Net>(options.value("vocab", 4096), options.value("width", 64));
  return {net, [net](const perigee::Batch& batch) {
            const auto logits = net->forward(batch.at("tokens"));
            perigee::Result result{{}, {{"logits", logits}}};
            const auto labels = batch.find("labels");  // `perigee sample` passes none
            if (labels != batch.end()) {
              result.loss =
                  nn::functional::cross_entropy(logits.flatten(0, 1), labels->second.flatten());
            }
            return result;
          }};
}

}  // namespace

PERIGEE_MODEL(make)
