// llama: Llama (Touvron et al. 2023): RMS norm, rotary positions, grouped queries (Ainslie et al.
// 2023), SwiGLU, no biases.
#include "capture/composites/attention.h"
#include "capture/models/parts.h"

namespace perigee::models {
namespace {

struct RmsNorm : nn::Module {
  Tensor weight;
  double eps;

  RmsNorm(int64_t width, double eps) : eps(eps) {
    weight = register_parameter("weight", torch::ones({width}));
  }

  Tensor forward(const Tensor& x) { return at::rms_norm(x, weight.sizes(), weight, eps); }
};

nn::Linear linear(int64_t in, int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

// What all blocks read.
struct Shared {
  Tensor cos, sin;   // of the positions' angles, [s, d]; with packed documents [b, 1, s, d]
  Tensor documents;  // [b, s]; undefined: a sample is one text
};

// Rotates pairs (x[i], x[i + d/2]) of x [b, h, s, d] by the angles with this cos and sin.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const auto halves = x.chunk(2, -1);
  return x * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
}

struct Attention : nn::Module {
  int64_t heads, kv_heads, size;
  nn::Linear q, k, v, out;

  Attention(int64_t width, int64_t heads, int64_t kv_heads)
      : heads(heads),
        kv_heads(kv_heads),
        size(width / heads),
        q(linear(width, width)),
        k(linear(width, kv_heads * size)),
        v(linear(width, kv_heads * size)),
        out(linear(width, width)) {
    register_module("q", q);
    register_module("k", k);
    register_module("v", v);
    register_module("out", out);
  }

  Tensor forward(const Tensor& x, const Shared& shared) {
    const auto b = x.size(0), s = x.size(1);
    const auto& [cos, sin, documents] = shared;
    const auto split = [&](const Tensor& t, int64_t n) {
      return t.view({b, s, n, size}).transpose(1, 2);
    };
    const auto y = perigee::attention(
        rotate(split(q(x), heads), cos, sin), rotate(split(k(x), kv_heads), cos, sin),
        split(v(x), kv_heads),
        {.documents = documents, .causal = true, .grouped = kv_heads != heads});
    return out(y.transpose(1, 2).reshape({b, s, heads * size}));
  }
};

struct Mlp : nn::Module {
  nn::Linear gate, up, down;

  Mlp(int64_t width, int64_t hidden)
      : gate(linear(width, hidden)), up(linear(width, hidden)), down(linear(hidden, width)) {
    register_module("gate", gate);
    register_module("up", up);
    register_module("down", down);
  }

  Tensor forward(const Tensor& x) { return down(at::silu(gate(x)) * up(x)); }
};

struct Block : nn::Module {
  std::shared_ptr<RmsNorm> norm1, norm2;
  std::shared_ptr<Attention> attn;
  std::shared_ptr<Mlp> mlp;

  Block(int64_t width, int64_t heads, int64_t kv_heads, int64_t hidden, double eps)
      : norm1(std::make_shared<RmsNorm>(width, eps)),
        norm2(std::make_shared<RmsNorm>(width, eps)),
        attn(std::make_shared<Attention>(width, heads, kv_heads)),
        mlp(std::make_shared<Mlp>(width, hidden)) {
    register_module("norm1", norm1);
    register_module("attn", attn);
    register_module("norm2", norm2);
    register_module("mlp", mlp);
  }

  Tensor forward(Tensor x, const Shared& shared) {
    x = x + attn->forward(norm1->forward(x), shared);
    return x + mlp->forward(norm2->forward(x));
  }
};

struct Llama : nn::Module {
  nn::Embedding embed{nullptr};
  nn::ModuleList blocks;
  std::shared_ptr<RmsNorm> norm;
  nn::Linear head{nullptr};
  int64_t head_size;
  double theta;
  bool tied;

  explicit Llama(const job::ModelConfig& m)
      : head_size(m.integer("width") / m.integer("heads")),
        theta(m.number("theta")),
        tied(m.flag("tied")) {
    const auto width = m.integer("width"), vocab = m.integer("vocab");
    const auto eps = m.number("eps");
    embed = register_module("embed", nn::Embedding(vocab, width));
    register_module("blocks", blocks);
    for (int64_t i = 0; i < m.integer("layers"); ++i) {
      blocks->push_back(std::make_shared<Block>(width, m.integer("heads"), m.integer("kv_heads"),
                                                m.integer("hidden"), eps));
    }
    norm = register_module("norm", std::make_shared<RmsNorm>(width, eps));
    if (!tied) head = register_module("head", linear(width, vocab));
    for (auto& weight : parameters()) {
      if (weight.dim() == 2) fill_normal(weight, 0.02);
    }
  }

  Tensor forward(const Batch& batch) {
    auto x = embed(batch.at("tokens"));
    // Positions and angles have more digits than 16 bits.
    const auto type = x.scalar_type();
    const auto options = x.options().dtype(type == at::kDouble ? at::kDouble : at::kFloat);
    const auto frequency = at::pow(
        theta, at::arange(0, head_size, 2, options) * (-1.0 / double(head_size)));
    const auto angles = rotary_angles(batch, frequency);
    const Shared shared = {at::cos(angles).to(type), at::sin(angles).to(type), documents_of(batch)};
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, shared);
    x = norm->forward(x);
    return tied ? at::linear(x, embed->weight) : head(x);
  }
};

}  // namespace

BuiltInModel make_llama(const job::ModelConfig& model, int64_t sequence, Packing packing) {
  const auto head_size = model.integer("width") / model.integer("heads");
  if (head_size % 2 != 0) {
    fail("model", "model.width / model.heads must be even for rotary positions, but got {}",
         head_size);
  }
  auto net = build<Llama>(model);
  return {{net, [net = net.get()](
                    const Batch& batch) { return language_result(net->forward(batch), batch); }},
          language_batch(model, sequence, packing)};
}

}  // namespace perigee::models
