// moe: a GPT whose blocks have a mixture of experts (Shazeer et al. 2017; capacity and balance loss
// as in Switch, Fedus et al. 2021, and GShard). Every expert has a number of places, so all shapes
// are fixed.
#include "capture/composites/experts.h"
#include "capture/models/parts.h"

namespace perigee::models {
namespace {

struct Experts : nn::Module {
  int64_t experts, top_k;
  double capacity;
  bool by_sample, dropless;
  nn::Linear router;
  Tensor up, down;  // [e, w, h], [e, h, w]

  explicit Experts(const job::ModelConfig& m)
      : experts(m.integer("experts")),
        top_k(m.integer("top_k")),
        capacity(m.number("capacity")),
        by_sample(m.text("capacity_per") == "sample"),
        dropless(m.flag("dropless")),
        router(nn::LinearOptions(m.integer("width"), experts).bias(false)) {
    const auto width = m.integer("width"), hidden = m.integer("hidden");
    register_module("router", router);
    up = register_parameter("up", torch::empty({experts, width, hidden}));
    down = register_parameter("down", torch::empty({experts, hidden, width}));
    fill_normal(up, 0.02);
    fill_normal(down, 0.02);
    fill_normal(router->weight, 0.02);
  }

  // An expert's places for the tokens of a group. It is chosen by each token at most once.
  int64_t places(int64_t tokens) const {
    if (capacity == 0) return tokens;
    const auto share = double(tokens * top_k) / double(experts);
    return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(capacity * share)), 1, tokens);
  }

  // Returns y [b, s, w] and the balance loss [].
  std::pair<Tensor, Tensor> forward(const Tensor& input) {
    const auto width = input.size(-1);
    const auto x = by_sample ? input : input.reshape({1, -1, width});  // [g, t, w]
    const auto groups = x.size(0), tokens = x.size(1);
    const auto probability = at::softmax(router(x), -1);             // [g, t, e]
    const auto [weight, choice] = at::topk(probability, top_k, -1);  // [g, t, k]
    const auto share = weight / weight.sum(-1, true);
    const auto [slot, counts] = perigee::experts::slots(choice, experts, places(tokens), dropless);
    const auto sent = x.unsqueeze(2).expand({groups, tokens, top_k, width});
    const auto queue = perigee::experts::dispatch(sent, slot, experts, places(tokens));
    const auto work = at::gelu(perigee::experts::grouped_mm(queue, up, counts), "tanh");
    const auto done = perigee::experts::grouped_mm(work, down, counts);
    const auto y = (perigee::experts::combine(done, slot) * share.unsqueeze(-1)).sum(2);
    // The share of tokens each expert was chosen for, times its mean probability.
    const auto load = at::one_hot(choice, experts).to(x.scalar_type()).mean({1, 2});  // [g, e]
    const auto balance = (load * probability.mean(1)).sum(-1).mean() * double(experts);
    return {y.view(input.sizes()), balance};
  }
};

struct Block : nn::Module {
  nn::LayerNorm norm1, norm2;
  std::shared_ptr<Attention> attn;
  std::shared_ptr<Experts> experts;
  nn::Dropout drop1, drop2;

  explicit Block(const job::ModelConfig& m)
      : norm1(nn::LayerNormOptions({m.integer("width")}).eps(m.number("eps"))),
        norm2(nn::LayerNormOptions({m.integer("width")}).eps(m.number("eps"))),
        attn(std::make_shared<Attention>(
            AttentionOptions{.width = m.integer("width"), .heads = m.integer("heads")})),
        experts(std::make_shared<Experts>(m)),
        drop1(m.number("dropout")),
        drop2(m.number("dropout")) {
    register_module("norm1", norm1);
    register_module("attn", attn);
    register_module("norm2", norm2);
    register_module("experts", experts);
    register_module("drop1", drop1);
    register_module("drop2", drop2);
  }
};

struct Moe : nn::Module {
  nn::Embedding embed{nullptr}, position{nullptr};
  nn::ModuleList blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
  double balance;
  bool tied;

  explicit Moe(const job::ModelConfig& m) : balance(m.number("balance")), tied(m.flag("tied")) {
    const auto width = m.integer("width"), vocab = m.integer("vocab");
    embed = register_module("embed", nn::Embedding(vocab, width));
    position = register_module("position", nn::Embedding(m.integer("positions"), width));
    register_module("blocks", blocks);
    for (int64_t i = 0; i < m.integer("layers"); ++i) blocks->push_back(std::make_shared<Block>(m));
    norm = register_module("norm",
                           nn::LayerNorm(nn::LayerNormOptions({width}).eps(m.number("eps"))));
    if (!tied)
      head = register_module("head", nn::Linear(nn::LinearOptions(width, vocab).bias(false)));
    fill_normal(embed->weight, 0.02);
    fill_normal(position->weight, 0.02);
  }

  Result forward(const Batch& batch) {
    auto x = embed(batch.at("tokens")) + position(positions_of(batch));
    const auto documents = documents_of(batch);
    Tensor balance_loss;
    for (const auto& module : *blocks) {
      auto* block = module->as<Block>();
      x = x + block->drop1(block->attn->forward(block->norm1(x), documents));
      const auto [y, loss] = block->experts->forward(block->norm2(x));
      x = x + block->drop2(y);
      balance_loss = balance_loss.defined() ? balance_loss + loss : loss;
    }
    x = norm(x);
    auto result = language_result(tied ? at::linear(x, embed->weight) : head(x), batch);
    if (result.loss.defined() && balance > 0 && balance_loss.defined()) {
      result.loss = result.loss + balance_loss * (balance / double(blocks->size()));
    }
    return result;
  }
};

}  // namespace

BuiltInModel make_moe(const job::ModelConfig& model, int64_t sequence, Packing packing) {
  auto net = build<Moe>(model);
  return {{net, [net = net.get()](const Batch& batch) { return net->forward(batch); }},
          language_batch(model, sequence, packing)};
}

}  // namespace perigee::models
