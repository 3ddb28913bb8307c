// Time and memory of the capture of a 96-layer GPT of 175 billion parameters, against an eager
// forward and backward pass of 96 small layers. Prints nodes, milliseconds and the ratio.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "capture/capture.h"

namespace {

namespace nn = torch::nn;

struct Block : nn::Module {
  int64_t heads;
  nn::LayerNorm norm1, norm2;
  nn::Linear qkv, out, up, down;
  Block(int64_t width, int64_t heads)
      : heads(heads),
        norm1(nn::LayerNormOptions({width})),
        norm2(nn::LayerNormOptions({width})),
        qkv(width, 3 * width),
        out(width, width),
        up(width, 4 * width),
        down(4 * width, width) {
    register_module("norm1", norm1);
    register_module("norm2", norm2);
    register_module("qkv", qkv);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
  }
  at::Tensor forward(at::Tensor x) {
    const auto b = x.size(0), s = x.size(1), d = x.size(2);
    const auto p = qkv(norm1(x)).view({b, s, 3, heads, d / heads}).permute({2, 0, 3, 1, 4});
    const auto y = at::scaled_dot_product_attention(p[0], p[1], p[2], {}, 0.0, true);
    x = x + torch::dropout(out(y.transpose(1, 2).reshape({b, s, d})), 0.1, is_training());
    return x + down(torch::gelu(up(norm2(x)), "tanh"));
  }
};

struct Gpt : nn::Module {
  nn::Embedding embed;
  nn::ModuleList blocks;
  nn::Linear head;
  Gpt(int64_t layers, int64_t width, int64_t vocab)
      : embed(vocab, width), head(nn::LinearOptions(width, vocab).bias(false)) {
    register_module("embed", embed);
    register_module("blocks", blocks);
    register_module("head", head);
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(Block(width, 8));
  }
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& labels) {
    auto x = embed(tokens);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return nn::functional::cross_entropy(head(x).flatten(0, 1), labels.flatten());
  }
};

double milliseconds(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

// Peak resident memory of this process in MB.
long peak_megabytes() {
  std::ifstream file("/proc/self/status");
  std::string word;
  long kilobytes = 0;
  while (file >> word) {
    if (word == "VmHWM:") file >> kilobytes;
  }
  return kilobytes / 1024;
}

}  // namespace

int main() {
  constexpr int64_t layers = 96, width = 12'288, vocab = 50'304;
  std::shared_ptr<Gpt> net;
  const double construction = milliseconds(
      [&] { net = perigee::deferred<Gpt>(layers, width, vocab); });
  double parameters = 0;
  for (const auto& p : net->parameters()) parameters += static_cast<double>(p.numel());
  const auto tokens = torch::empty({8, 2048}, torch::dtype(torch::kLong).device(torch::kMeta));
  perigee::Captured captured;
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    times.push_back(milliseconds([&] {
      captured = perigee::capture(
          *net, {{"tokens", tokens}, {"labels", tokens}}, [&](const perigee::Batch& batch) {
            return perigee::Result{net->loss(batch.at("tokens"), batch.at("labels"))};
          });
    }));
  }
  const long peak = peak_megabytes();
  const double first = times.front();
  std::sort(times.begin(), times.end());

  // The rival: autograd of LibTorch over 96 small layers on the CPU.
  Gpt eager(layers, 64, 512);
  const auto small = torch::zeros({1, 16}, torch::kLong);
  std::vector<double> rival;
  for (int i = 0; i < 5; ++i) {
    rival.push_back(milliseconds([&] { eager.loss(small, small).backward(); }));
  }
  std::sort(rival.begin(), rival.end());

  const size_t gradients = std::count_if(
      captured.graph.outputs.begin(), captured.graph.outputs.end(),
      [](const auto& output) { return output.kind == perigee::graph::Output::Kind::gradient; });
  std::printf("parameters %.1fe9, without memory; construction %.0f ms\n", parameters / 1e9,
              construction);
  std::printf("capture: %zu nodes, first %.0f ms, median of 5 %.0f ms, peak memory %ld MB\n",
              captured.graph.nodes.size(), first, times[2], peak);
  std::printf("eager forward and backward of 96 layers of width 64: %.0f ms; ratio %.2f\n",
              rival[2], times[2] / rival[2]);
  if (gradients != net->parameters().size()) {
    std::printf("wrong: %zu gradients for %zu parameters\n", gradients, net->parameters().size());
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
