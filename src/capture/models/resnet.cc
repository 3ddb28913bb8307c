// resnet: residual networks (He et al. 2015) on images [channels, image, image]; images below 64
// keep their size in the stem.
#include <torch/nn/functional/loss.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include "capture/models/parts.h"

namespace perigee::models {
namespace {

nn::Conv2d convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride) {
  nn::Conv2d conv(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
  nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
  return conv;
}

// A basic block (3x3, 3x3), or a bottleneck (1x1, 3x3, 1x1 to four times the width) from
// 50 layers on.
struct Block : nn::Module {
  nn::ModuleList convs, norms;
  nn::Conv2d shortcut{nullptr};
  nn::BatchNorm2d shortcut_norm{nullptr};

  Block(int64_t in, int64_t width, int64_t stride, bool bottleneck) {
    register_module("convs", convs);
    register_module("norms", norms);
    const auto add = [&](int64_t from, int64_t to, int64_t kernel, int64_t step) {
      convs->push_back(convolution(from, to, kernel, step));
      norms->push_back(nn::BatchNorm2d(to));
    };
    const auto out = bottleneck ? 4 * width : width;
    if (bottleneck) {
      add(in, width, 1, 1);
      add(width, width, 3, stride);
      add(width, out, 1, 1);
    } else {
      add(in, width, 3, stride);
      add(width, width, 3, 1);
    }
    if (stride != 1 || in != out) {
      shortcut = register_module("shortcut", convolution(in, out, 1, stride));
      shortcut_norm = register_module("shortcut_norm", nn::BatchNorm2d(out));
    }
  }

  Tensor forward(const Tensor& x) {
    auto y = x;
    for (size_t i = 0; i < convs->size(); ++i) {
      if (i > 0) y = at::relu(y);
      y = norms->at<nn::BatchNorm2dImpl>(i).forward(convs->at<nn::Conv2dImpl>(i).forward(y));
    }
    return at::relu(y + (shortcut.is_empty() ? x : shortcut_norm(shortcut(x))));
  }
};

struct Resnet : nn::Module {
  nn::Conv2d stem{nullptr};
  nn::BatchNorm2d norm{nullptr};
  nn::ModuleList blocks;
  nn::Linear head{nullptr};
  bool large;

  explicit Resnet(const job::ModelConfig& m) : large(m.integer("image") >= 64) {
    static const std::map<int64_t, std::vector<int64_t>> stages = {{18, {2, 2, 2, 2}},
                                                                   {34, {3, 4, 6, 3}},
                                                                   {50, {3, 4, 6, 3}},
                                                                   {101, {3, 4, 23, 3}},
                                                                   {152, {3, 8, 36, 3}}};
    const auto depth = m.integer("depth");
    const bool bottleneck = depth >= 50;
    int64_t width = m.integer("width"), in = width;
    stem = register_module("stem",
                           convolution(m.integer("channels"), width, large ? 7 : 3, large ? 2 : 1));
    norm = register_module("norm", nn::BatchNorm2d(width));
    register_module("blocks", blocks);
    for (size_t stage = 0; stage < 4; ++stage, width *= 2) {
      for (int64_t i = 0; i < stages.at(depth)[stage]; ++i) {
        blocks->push_back(
            std::make_shared<Block>(in, width, stage > 0 && i == 0 ? 2 : 1, bottleneck));
        in = bottleneck ? 4 * width : width;
      }
    }
    head = register_module("head", nn::Linear(in, m.integer("classes")));
  }

  // x [b, c, s, s] -> [b, classes]
  Tensor forward(Tensor x) {
    x = at::relu(norm(stem(x)));
    if (large) x = at::max_pool2d(x, {3, 3}, {2, 2}, {1, 1}, {1, 1});
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return head(x.mean({2, 3}));
  }
};

}  // namespace

BuiltInModel make_resnet(const job::ModelConfig& model) {
  auto net = build<Resnet>(model);
  const auto channels = model.integer("channels"), size = model.integer("image"),
             classes = model.integer("classes");
  const auto dtype = graph::dtype_of(model.dtype).value();
  const auto forward = [net = net.get()](const Batch& batch) {
    Result result;
    const auto output = net->forward(batch.at("image"));
    result.results["output"] = output;
    if (const auto label = batch.find("label"); label != batch.end()) {
      result.loss = torch::nn::functional::cross_entropy(output, label->second);
    }
    return result;
  };
  return {{net, forward},
          {{"image", dtype, {channels, size, size}}, {"label", graph::DType::int64, {}, classes}}};
}

}  // namespace perigee::models
