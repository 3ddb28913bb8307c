#include "capture/models/hf/decoder.h"

#include <c10/util/BFloat16.h>

#include <cmath>
#include <limits>
#include <map>

#include "capture/composites/attention.h"
#include "capture/composites/experts.h"
#include "capture/models/hf/families.h"
#include "capture/models/hf/rope.h"
#include "capture/models/parts.h"

namespace perigee::hf {
namespace {

using at::Tensor;
using models::fill_normal;
namespace nn = torch::nn;

// Values that all blocks of one pass read. Undefined where the model or layer has none.
struct Positions {
  Tensor cos, sin;                  // [s, head size]; with packed documents [b, 1, s, head size]
  std::map<int64_t, Tensor> masks;  // by window: summands of the scores, [s, s]
  Tensor documents;                 // [b, s], of packed documents
};

Tensor activate(const std::string& name, const Tensor& x) {
  if (name == "silu" || name == "swish") return at::silu(x);
  if (name == "gelu" || name == "gelu_python") return at::gelu(x);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_python_tanh")
    return at::gelu(x, "tanh");
  if (name == "quick_gelu") return x * at::sigmoid(x * 1.702);
  if (name == "relu") return at::relu(x);
  if (name == "relu2") return at::square(at::relu(x));
  if (name == "sigmoid") return at::sigmoid(x);
  if (name == "tanh") return at::tanh(x);
  fail("hf",
       "the activation is silu, swish, gelu, gelu_python, gelu_new, gelu_pytorch_tanh, "
       "gelu_python_tanh, quick_gelu, relu, relu2, sigmoid or tanh, but config.json has \"{}\"",
       name);
}

struct RmsNorm : nn::Module {
  Tensor weight;
  double eps;
  bool offset;

  RmsNorm(int64_t width, double eps, bool offset) : eps(eps), offset(offset) {
    weight = register_parameter("weight", offset ? torch::zeros({width}) : torch::ones({width}));
  }

  Tensor forward(const Tensor& x) {
    if (!offset) return at::rms_norm(x, weight.sizes(), weight, eps);
    // In float32 as in transformers: a type of 16 bits rounds 1 + weight to two digits.
    const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::rms_norm(x.to(wide), weight.sizes(), weight.to(wide) + 1, eps).to(x.scalar_type());
  }
};

// The norm of a family: RMS or layer norm over the last dim.
struct Norm {
  std::shared_ptr<RmsNorm> rms;
  nn::LayerNorm layer{nullptr};

  Norm(nn::Module& owner, const std::string& name, const Architecture& a, int64_t width) {
    if (a.family->rotary) {
      rms = owner.register_module(name,
                                  std::make_shared<RmsNorm>(width, a.eps, a.family->norm_offset));
    } else {
      layer = owner.register_module(name, nn::LayerNorm(nn::LayerNormOptions({width}).eps(a.eps)));
    }
  }

  Tensor operator()(const Tensor& x) { return rms ? rms->forward(x) : layer(x); }
};

// Rotates pairs (x[i], x[i + d/2]) of x [b, h, s, d].
Tensor rotate(const Tensor& x, const Positions& positions) {
  const auto halves = x.chunk(2, -1);
  return x * positions.cos + at::cat({-halves[1], halves[0]}, -1) * positions.sin;
}

struct RotaryAttention : nn::Module {
  int64_t heads, kv_heads, size, window;
  double dropout;
  nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, out{nullptr};
  std::optional<Norm> q_norm, k_norm;

  RotaryAttention(const Architecture& a, int64_t window)
      : heads(a.heads),
        kv_heads(a.kv_heads),
        size(a.head_size),
        window(window),
        dropout(a.attention_dropout) {
    const bool bias = a.attention_bias || a.family->qkv_bias;
    const auto linear = [&](const char* name, int64_t in, int64_t to, bool has_bias) {
      return register_module(name, nn::Linear(nn::LinearOptions(in, to).bias(has_bias)));
    };
    q = linear("q", a.width, heads * size, bias);
    k = linear("k", a.width, kv_heads * size, bias);
    v = linear("v", a.width, kv_heads * size, bias);
    out = linear("out", heads * size, a.width, a.attention_bias);
    if (!a.family->qk_norm) return;
    q_norm.emplace(*this, "q_norm", a, size);
    k_norm.emplace(*this, "k_norm", a, size);
  }

  Tensor forward(const Tensor& x, const Positions& positions) {
    const auto b = x.size(0), s = x.size(1);
    const auto split = [&](const Tensor& t, int64_t n, std::optional<Norm>* norm) {
      auto parts = t.view({b, s, n, size});
      if (norm && *norm) parts = (**norm)(parts);
      return parts.transpose(1, 2);
    };
    const auto mask = positions.masks.find(window);
    const bool masked = mask != positions.masks.end();
    const auto y = perigee::attention(rotate(split(q(x), heads, &q_norm), positions),
                                      rotate(split(k(x), kv_heads, &k_norm), positions),
                                      split(v(x), kv_heads, nullptr),
                                      {.documents = positions.documents,
                                       .mask = masked ? mask->second : Tensor(),
                                       .dropout = is_training() ? dropout : 0.0,
                                       .causal = !masked,
                                       .grouped = kv_heads != heads});
    return out(y.transpose(1, 2).reshape({b, s, heads * size}));
  }
};

struct Mlp : nn::Module {
  std::string activation;
  nn::Linear gate{nullptr}, up{nullptr}, down{nullptr};

  explicit Mlp(const Architecture& a) : activation(a.activation) {
    const bool gated = a.family->rotary, bias = a.mlp_bias || !gated;
    const auto linear = [&](const char* name, int64_t in, int64_t to) {
      return register_module(name, nn::Linear(nn::LinearOptions(in, to).bias(bias)));
    };
    if (gated) gate = linear("gate", a.width, a.hidden);
    up = linear("up", a.width, a.hidden);
    down = linear("down", a.hidden, a.width);
  }

  Tensor forward(const Tensor& x) {
    if (!gate) return down(activate(activation, up(x)));
    return down(activate(activation, gate(x)) * up(x));
  }
};

// A mixture of gated experts (Mixtral, Jiang et al. 2024): each token is sent to its top_k,
// whatever the others choose.
struct Experts : nn::Module {
  std::string activation;
  int64_t experts, top_k;
  nn::Linear router{nullptr};
  Tensor gate, up, down;  // [e, w, h], [e, w, h], [e, h, w]

  explicit Experts(const Architecture& a)
      : activation(a.activation), experts(a.experts), top_k(a.top_k) {
    router = register_module("router", nn::Linear(nn::LinearOptions(a.width, experts).bias(false)));
    gate = register_parameter("gate", torch::empty({experts, a.width, a.hidden}));
    up = register_parameter("up", torch::empty({experts, a.width, a.hidden}));
    down = register_parameter("down", torch::empty({experts, a.hidden, a.width}));
  }

  // x [b, s, w] -> [b, s, w]. The queues are those of each sample, so that samples
  // stay independent. `balance`, where it is not null, receives the mean over tokens of each
  // expert's number of choices and of its probability, [2, e].
  Tensor forward(const Tensor& x, Tensor* balance) {
    const auto b = x.size(0), s = x.size(1), w = x.size(2);
    const auto probability = at::softmax(router(x), -1);             // [b, s, e]
    const auto [weight, choice] = at::topk(probability, top_k, -1);  // [b, s, k]
    const auto share = weight / weight.sum(-1, true);
    if (balance) {
      const auto chosen = at::one_hot(choice, experts).sum(2).to(probability.scalar_type());
      const std::vector<int64_t> tokens = {0, 1};  // dims
      *balance = at::stack({chosen.mean(tokens), probability.mean(tokens)});
    }
    const auto [slot, counts] = perigee::experts::slots(choice, experts, s);
    const auto sent = x.unsqueeze(2).expand({b, s, top_k, w});
    const auto queue = perigee::experts::dispatch(sent, slot, experts, s);
    const auto work = activate(activation, perigee::experts::grouped_mm(queue, gate, counts)) *
                      perigee::experts::grouped_mm(queue, up, counts);
    const auto done = perigee::experts::grouped_mm(work, down, counts);
    return (perigee::experts::combine(done, slot) * share.unsqueeze(-1)).sum(2);
  }
};

struct Block : nn::Module {
  std::shared_ptr<RotaryAttention> rotary;
  std::shared_ptr<models::Attention> attention;
  std::shared_ptr<Mlp> mlp;
  std::shared_ptr<Experts> experts;
  nn::Dropout drop1{nullptr}, drop2{nullptr};
  std::optional<Norm> norm1, norm2;

  Block(const Architecture& a, int64_t window) {
    norm1.emplace(*this, "norm1", a, a.width);
    if (a.family->rotary) {
      rotary = register_module("attn", std::make_shared<RotaryAttention>(a, window));
    } else {
      attention = register_module(
          "attn", std::make_shared<models::Attention>(models::AttentionOptions{
                      .width = a.width, .heads = a.heads, .dropout = a.attention_dropout}));
    }
    norm2.emplace(*this, "norm2", a, a.width);
    if (a.experts > 0) {
      experts = register_module("experts", std::make_shared<Experts>(a));
    } else {
      mlp = register_module("mlp", std::make_shared<Mlp>(a));
    }
    drop1 = register_module("drop1", nn::Dropout(a.residual_dropout));
    drop2 = register_module("drop2", nn::Dropout(a.residual_dropout));
  }

  Tensor forward(Tensor x, const Positions& positions, Tensor* balance) {
    const auto normal = (*norm1)(x);
    x = x + drop1(rotary ? rotary->forward(normal, positions)
                         : attention->forward(normal, positions.documents));
    const auto second = (*norm2)(x);
    return x + drop2(experts ? experts->forward(second, balance) : mlp->forward(second));
  }
};

struct Decoder : nn::Module {
  nn::Embedding embed{nullptr}, position{nullptr};
  nn::Dropout drop{nullptr};
  nn::ModuleList blocks;
  std::optional<Norm> norm;
  nn::Linear head{nullptr};
  Architecture a;
  Tensor frequencies;  // [head size / 2], on the CPU
  double rope_scale = 1;

  explicit Decoder(const Architecture& architecture) : a(architecture) {
    embed = register_module("embed", nn::Embedding(a.vocab, a.width));
    if (!a.family->rotary) {
      position = register_module("position", nn::Embedding(a.positions, a.width));
      drop = register_module("drop", nn::Dropout(a.embedding_dropout));
    }
    register_module("blocks", blocks);
    for (const auto window : a.windows) blocks->push_back(std::make_shared<Block>(a, window));
    norm.emplace(*this, "norm", a, a.width);
    if (!a.tied) {
      head = register_module("head", nn::Linear(nn::LinearOptions(a.width, a.vocab).bias(false)));
    }
    for (const auto& item : named_parameters()) {
      if (item.value().dim() > 1) fill_normal(item.value(), a.deviation);
      if (!item.key().ends_with(".bias")) continue;
      torch::NoGradGuard off;
      item.value().zero_();
    }
  }

  Positions positions(const Batch& batch, const Tensor& x) const {
    Positions result;
    const auto s = x.size(1);
    result.documents = models::documents_of(batch);
    if (frequencies.defined()) {
      const auto angles = models::rotary_angles(batch, frequencies);
      result.cos = (at::cos(angles) * rope_scale).to(x.scalar_type());
      result.sin = (at::sin(angles) * rope_scale).to(x.scalar_type());
    }
    for (const auto window : a.windows) {
      if (window == 0 || window >= s || result.masks.contains(window)) continue;
      const auto seen = at::ones({s, s}, x.options().dtype(at::kBool)).tril().triu(1 - window);
      result.masks[window] = at::zeros({s, s}, x.options())
                                 .masked_fill(seen.logical_not(),
                                              -std::numeric_limits<double>::infinity());
    }
    return result;
  }

  // tokens [b, s] -> logits [b, s, v] and, where the model balances its experts, the balance loss.
  std::pair<Tensor, Tensor> forward(const Batch& batch) {
    auto x = embed(batch.at("tokens"));
    if (a.family->scaled_embedding) x = x * embedding_scale(x.scalar_type());
    if (position) x = drop(x + position(models::positions_of(batch)));
    const auto shared = positions(batch, x);
    Tensor balance;  // [2, e], the sum over layers
    for (const auto& block : *blocks) {
      Tensor own;
      x = block->as<Block>()->forward(x, shared, a.balances ? &own : nullptr);
      if (a.balances) balance = balance.defined() ? balance + own : own;
    }
    x = (*norm)(x);
    return {a.tied ? at::linear(x, embed->weight) : head(x), balance_loss(balance)};
  }

  // The loss of transformers (Switch Transformer, Fedus et al. 2021, equations 4 to 6), of the means
  // over all layers.
  Tensor balance_loss(const Tensor& sums) const {
    if (!sums.defined()) return {};
    const auto means = sums / double(a.layers);
    return (means[0] * means[1]).sum() * double(a.experts);
  }

  // Returns sqrt(width) rounded to the type, as transformers has it.
  double embedding_scale(at::ScalarType type) const {
    const double scale = std::sqrt(double(a.width));
    if (type == at::kDouble) return scale;
    const auto single = static_cast<float>(scale);
    return type == at::kBFloat16 ? static_cast<float>(c10::BFloat16(single)) : single;
  }
};

}  // namespace

BuiltInModel make_decoder(const job::ModelConfig& model, int64_t sequence, Packing packing) {
  const auto architecture = read_architecture(model.text("folder"));
  if (!architecture.family->rotary && sequence > architecture.positions) {
    fail("hf",
         "data.sequence is at most the number of learned positions of {} (n_positions = {}), but "
         "got {}",
         model.text("folder"), architecture.positions, sequence);
  }
  if (const auto longest = longest_of_one_table(architecture);
      packing == Packing::documents && longest > 0 && sequence > longest) {
    fail("hf",
         "the rotary positions of {} (rope_scaling \"{}\") depend on the length of a document "
         "beyond "
         "{} tokens: with data.pack = \"documents\" data.sequence is at most that, but got {}",
         model.text("folder"), architecture.rope.kind, longest, sequence);
  }
  models::ParameterType type(model);
  const auto net = deferred<Decoder>(architecture);
  if (architecture.family->rotary) {
    const auto table = rope_table(architecture, sequence);
    const bool wide = model.dtype == "float64";
    net->frequencies =
        at::tensor(table.frequencies, at::kDouble).to(wide ? at::kDouble : at::kFloat);
    net->rope_scale = table.scale;
  }
  auto sized = model;
  sized.values["vocab"] = architecture.vocab;
  return {{net,
           [net = net.get()](const Batch& batch) {
             const auto [logits, balance] = net->forward(batch);
             auto result = models::language_result(logits, batch);
             if (result.loss.defined() && balance.defined()) {
               result.loss = result.loss + balance * net->a.balance_weight;
             }
             return result;
           }},
          models::language_batch(sized, sequence, packing)};
}

}  // namespace perigee::hf
