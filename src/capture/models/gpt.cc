// gpt: GPT-2 (Radford et al. 2019): learned positions, pre-norm blocks, GELU by tanh, the head tied
// to the embedding.
#include "capture/models/parts.h"

namespace perigee::models {
namespace {

struct Mlp : nn::Module {
  nn::Linear up, down;

  Mlp(int64_t width, int64_t hidden, bool bias)
      : up(nn::LinearOptions(width, hidden).bias(bias)),
        down(nn::LinearOptions(hidden, width).bias(bias)) {
    register_module("up", up);
    register_module("down", down);
  }

  Tensor forward(const Tensor& x) { return down(at::gelu(up(x), "tanh")); }
};

struct Block : nn::Module {
  nn::LayerNorm norm1, norm2;
  std::shared_ptr<Attention> attn;
  std::shared_ptr<Mlp> mlp;
  nn::Dropout drop1, drop2;

  explicit Block(const job::ModelConfig& m)
      : norm1(nn::LayerNormOptions({m.integer("width")}).eps(m.number("eps"))),
        norm2(nn::LayerNormOptions({m.integer("width")}).eps(m.number("eps"))),
        attn(std::make_shared<Attention>(AttentionOptions{.width = m.integer("width"),
                                                          .heads = m.integer("heads"),
                                                          .dropout = m.number("dropout"),
                                                          .bias = m.flag("bias")})),
        mlp(std::make_shared<Mlp>(m.integer("width"), m.integer("hidden"), m.flag("bias"))),
        drop1(m.number("dropout")),
        drop2(m.number("dropout")) {
    register_module("norm1", norm1);
    register_module("attn", attn);
    register_module("drop1", drop1);
    register_module("norm2", norm2);
    register_module("mlp", mlp);
    register_module("drop2", drop2);
  }

  Tensor forward(Tensor x, const Tensor& documents) {
    x = x + drop1(attn->forward(norm1(x), documents));
    return x + drop2(mlp->forward(norm2(x)));
  }
};

struct Gpt : nn::Module {
  nn::Embedding embed{nullptr}, position{nullptr};
  nn::Dropout drop{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
  bool tied;

  explicit Gpt(const job::ModelConfig& m) : tied(m.flag("tied")) {
    const auto layers = m.integer("layers"), width = m.integer("width"), vocab = m.integer("vocab");
    embed = register_module("embed", nn::Embedding(vocab, width));
    position = register_module("position", nn::Embedding(m.integer("positions"), width));
    drop = register_module("drop", nn::Dropout(m.number("dropout")));
    register_module("blocks", blocks);
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(std::make_shared<Block>(m));
    norm = register_module("norm",
                           nn::LayerNorm(nn::LayerNormOptions({width}).eps(m.number("eps"))));
    if (!tied)
      head = register_module("head", nn::Linear(nn::LinearOptions(width, vocab).bias(false)));
    // Projections into the residual stream start smaller with depth, as in GPT-2.
    for (const auto& item : named_parameters()) {
      const auto& name = item.key();
      if (name.ends_with(".bias")) {
        torch::NoGradGuard off;
        item.value().zero_();
      } else if (item.value().dim() == 2) {
        const bool into_residual = name.ends_with("attn.out.weight") ||
                                   name.ends_with("mlp.down.weight");
        fill_normal(item.value(), into_residual ? 0.02 / std::sqrt(2.0 * double(layers)) : 0.02);
      }
    }
  }

  // tokens [b, s] -> logits [b, s, v]
  Tensor forward(const Batch& batch) {
    auto x = embed(batch.at("tokens")) + position(positions_of(batch));
    x = drop(x);
    const auto documents = documents_of(batch);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, documents);
    x = norm(x);
    return tied ? at::linear(x, embed->weight) : head(x);
  }
};

}  // namespace

BuiltInModel make_gpt(const job::ModelConfig& model, int64_t sequence, Packing packing) {
  auto net = build<Gpt>(model);
  return {{net, [net = net.get()](
                    const Batch& batch) { return language_result(net->forward(batch), batch); }},
          language_batch(model, sequence, packing)};
}

}  // namespace perigee::models
