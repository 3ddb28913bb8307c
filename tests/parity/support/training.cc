#include "tests/parity/support/training.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include <cmath>
#include <mutex>

#include "base/error.h"
#include "capture/capture.h"
#include "exec/comm/threads.h"
#include "exec/executor.h"
#include "tests/support/test_device.h"

namespace perigee::parity {

namespace {

namespace nn = torch::nn;
using compile::Binding;

class Block : public nn::Module {
 public:
  explicit Block(const GptShape& shape) : shape_(shape) {
    const int64_t w = shape.width;
    norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({w})));
    qkv_ = register_module("qkv", nn::Linear(w, 3 * w));
    proj_ = register_module("proj", nn::Linear(w, w));
    norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({w})));
    up_ = register_module("up", nn::Linear(w, 4 * w));
    down_ = register_module("down", nn::Linear(4 * w, w));
  }

  at::Tensor forward(const at::Tensor& x) {
    const auto b = x.size(0), s = x.size(1), w = x.size(2), h = shape_.heads;
    const auto parts = qkv_(norm1_(x)).chunk(3, -1);
    auto split = [&](const at::Tensor& t) { return t.view({b, s, h, w / h}).transpose(1, 2); };
    const auto mixed = at::scaled_dot_product_attention(split(parts[0]), split(parts[1]),
                                                        split(parts[2]), {}, shape_.dropout, true);
    const auto a = x + drop(proj_(mixed.transpose(1, 2).reshape({b, s, w})));
    return a + drop(down_(at::gelu(up_(norm2_(a)))));
  }

 private:
  at::Tensor drop(const at::Tensor& x) const {
    return shape_.dropout > 0 ? torch::dropout(x, shape_.dropout, is_training()) : x;
  }

  GptShape shape_;
  nn::LayerNorm norm1_{nullptr}, norm2_{nullptr};
  nn::Linear qkv_{nullptr}, proj_{nullptr}, up_{nullptr}, down_{nullptr};
};

// The step's whole batch: tokens and labels; the share of ignored labels differs by sample.
Batch batch_of(const GptShape& shape, const Recipe& recipe, int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step));
  const std::vector<int64_t> sizes{recipe.batch, shape.sequence};
  const auto tokens = at::randint(0, shape.vocabulary, sizes, generator, at::kLong);
  auto labels = at::randint(0, shape.vocabulary, sizes, generator, at::kLong);
  const auto draw = at::rand(sizes, generator, at::TensorOptions(at::kDouble));
  const auto share = at::arange(recipe.batch, at::kDouble).unsqueeze(1) *
                     (2 * recipe.ignored / recipe.batch);
  labels.masked_fill_(draw < share, -100);
  return {{"tokens", tokens}, {"labels", labels}};
}

// Dry runs of a device, without a cache.
class DryRuns : public compile::TraceSource {
 public:
  explicit DryRuns(exec::Device& device) : device_(device) {}
  std::optional<compile::OpTrace> find(const compile::OpInstance& instance) override {
    return device_.dry_run(instance);
  }

 private:
  exec::Device& device_;
};

double relative(double a, double b) { return std::abs(a - b) / std::max(1.0, std::abs(b)); }

using Loss = std::function<at::Tensor(const Batch&)>;
using Batches = std::function<Batch(int64_t step)>;

Batch piece(const Batch& batch, int64_t microbatch, int64_t size) {
  Batch part;
  for (const auto& [name, tensor] : batch) part[name] = tensor.narrow(0, microbatch * size, size);
  return part;
}

std::map<std::string, at::Tensor> state_of(const nn::Module& net) {
  std::map<std::string, at::Tensor> state;
  for (const auto& parameter : net.named_parameters()) {
    state[parameter.key()] = parameter.value().detach().clone();
  }
  for (const auto& buffer : net.named_buffers()) state[buffer.key()] = buffer.value().clone();
  return state;
}

at::Tensor part(at::Tensor whole, const std::vector<mesh::Range>& ranges) {
  for (size_t d = 0; d < ranges.size(); ++d) {
    whole = whole.narrow(static_cast<int64_t>(d), ranges[d].begin, ranges[d].length);
  }
  return whole;
}

// Tensors assembled from the ranks' parts. NaN where two ranks have different bits.
class Assembled {
 public:
  explicit Assembled(const std::map<std::string, at::Tensor>& like) {
    for (const auto& [name, tensor] : like) {
      tensors_[name] = at::zeros_like(tensor);
      known_[name] = at::zeros_like(tensor, at::kBool);
    }
  }

  void add(const std::string& name, const std::vector<mesh::Range>& ranges,
           const at::Tensor& value) {
    std::lock_guard lock(mutex_);
    auto target = part(tensors_.at(name), ranges), known = part(known_.at(name), ranges);
    const bool differs = at::logical_and(known, target != value).any().item<bool>();
    target.copy_(value);
    if (differs) target.fill_(std::nan(""));
    known.fill_(true);
  }

  // The tensors that some rank has. Throws if a part is missing.
  std::map<std::string, at::Tensor> take() {
    for (const auto& [name, known] : known_) {
      if (!known.any().item<bool>()) {
        tensors_.erase(name);
      } else if (!known.all().item<bool>()) {
        throw std::runtime_error("no rank has all of " + name);
      }
    }
    return std::move(tensors_);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, at::Tensor> tensors_, known_;
};

Trained train_module(nn::Module& net, const Batches& batches, const Loss& loss,
                     const Recipe& recipe, const Ranks& ranks) {
  const int64_t micro = recipe.batch / ranks.microbatches;
  const auto captured = capture(net, piece(batches(1), 0, micro),
                                [&](const Batch& batch) { return Result{loss(batch)}; });
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(captured.graph);
  plan.mesh.axes = {{"data", ranks.count}};
  plan.microbatches = ranks.microbatches;
  plan.communication.bucket_bytes = 4 << 10;
  if (ranks.plan) ranks.plan(plan, captured.graph);
  plan::verify(plan, captured.graph);

  const auto initial = state_of(net);
  Trained result;
  Assembled assembled(initial);
  exec::run_ranks(ranks.count, [&](exec::Communicator& communicator) {
    const TestRank on(communicator);
    DryRuns traces(*on.device);
    auto program = compile::compile(captured.graph, plan, recipe.spec, communicator.rank(), traces);
    compile::verify(program);
    if (ranks.edit) ranks.edit(program);
    const int64_t program_peak = program.peak_bytes;
    const uint64_t seed = ranks.one_seed ? 5 : 5 + static_cast<uint64_t>(communicator.rank());
    exec::Executor executor(std::move(program), *on.communicator, plan.mesh,
                            {.seed = seed, .device = on.device});
    auto each_state = [&](auto f) {
      for (const auto& binding : executor.program().bindings) {
        if (binding.kind != Binding::Kind::parameter && binding.kind != Binding::Kind::buffer)
          continue;
        f(binding, executor.tensor(binding));
      }
    };
    each_state([&](const Binding& binding, at::Tensor value) {
      value.copy_(part(initial.at(binding.name), binding.ranges));
    });
    Trained mine;
    mine.peak_bytes = program_peak;
    for (int64_t step = 1; step <= recipe.steps; ++step) {
      const auto batch = batches(step);
      std::map<std::string, double> rates;
      for (size_t g = 0; g <= recipe.spec.groups.size(); ++g) {
        rates["lr." + std::to_string(g)] = recipe.lr;
      }
      executor.run(
          {.step = step, .scalars = rates, .data = [&](const std::string& name, int64_t m) {
             return piece(batch, m, micro).at(name);
           }});
      auto number = [&](const char* name) {
        return executor.tensor(Binding::Kind::result, name).item<double>();
      };
      mine.losses.push_back(number("loss"));
      mine.norms.push_back(number("grad_norm"));
    }
    each_state([&](const Binding& binding, const at::Tensor& value) {
      assembled.add(binding.name, binding.ranges, value.cpu());
    });
    if (communicator.rank() == 0) result = std::move(mine);
  });
  result.parameters = assembled.take();
  return result;
}

class Convolution : public nn::Module {
 public:
  Convolution() {
    torch::manual_seed(11);
    convolution_ = register_module("convolution", nn::Conv2d(nn::Conv2dOptions(2, 4, 3)));
    norm_ = register_module("norm", nn::BatchNorm2d(4));
    linear_ = register_module("linear", nn::Linear(4 * 3 * 3, 3));
    to(at::kDouble);
  }
  at::Tensor loss(const Batch& batch) {
    const auto x = at::relu(norm_(convolution_(batch.at("images"))));
    return at::mse_loss(linear_(x.flatten(1)), batch.at("targets"));
  }

 private:
  nn::Conv2d convolution_{nullptr};
  nn::BatchNorm2d norm_{nullptr};
  nn::Linear linear_{nullptr};
};

Batch images_of(int64_t step) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(200 + step));
  const at::TensorOptions real(at::kDouble);
  return {{"images", at::randn({8, 2, 5, 5}, generator, real)},
          {"targets", at::randn({8, 3}, generator, real)}};
}

const Recipe kSgd{
    .spec = {.optimizer = "sgd", .options = {{"momentum", 0.9}}, .weight_decay = 0.01}};

}  // namespace

Gpt::Gpt(GptShape shape) : shape_(shape) {
  torch::manual_seed(7);
  const int64_t w = shape.width;
  tokens_ = register_module("tokens", nn::Embedding(shape.vocabulary, w));
  positions_ = register_module("positions", nn::Embedding(shape.sequence, w));
  blocks_ = register_module("blocks", nn::ModuleList());
  for (int64_t k = 0; k < shape.layers; ++k) blocks_->push_back(std::make_shared<Block>(shape));
  norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({w})));
  if (!shape.tied) {
    head_ = register_module("head", nn::Linear(nn::LinearOptions(w, shape.vocabulary).bias(false)));
  }
  to(at::kDouble);
}

at::Tensor Gpt::forward(const at::Tensor& tokens) {
  const auto positions = at::arange(tokens.size(1), tokens.options());
  auto x = tokens_(tokens) + positions_(positions);
  for (const auto& block : *blocks_) x = block->as<Block>()->forward(x);
  x = norm_(x);
  return shape_.tied ? at::linear(x, tokens_->weight) : head_(x);
}

at::Tensor Gpt::loss(const at::Tensor& tokens, const at::Tensor& labels) {
  const auto logits = forward(tokens);
  return nn::functional::cross_entropy(logits.view({-1, shape_.vocabulary}), labels.view({-1}));
}

Trained train_ranks(const GptShape& shape, const Recipe& recipe, const Ranks& ranks) {
  Gpt net(shape);
  return train_module(
      net, [&](int64_t step) { return batch_of(shape, recipe, step); },
      [&](const Batch& batch) { return net.loss(batch.at("tokens"), batch.at("labels")); }, recipe,
      ranks);
}

Trained train_eagerly(const GptShape& shape, const Recipe& recipe) {
  Gpt net(shape);
  const auto& spec = recipe.spec;
  const auto value = [&](const char* attribute) {
    return optim::value_of(*compile::optimizer_of(spec), attribute, spec.options);
  };
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(recipe.lr)
                                                      .betas({value("beta1"), value("beta2")})
                                                      .eps(value("eps"))
                                                      .weight_decay(spec.weight_decay));
  Trained result;
  for (int64_t step = 1; step <= recipe.steps; ++step) {
    const auto batch = batch_of(shape, recipe, step);
    optimizer.zero_grad();
    const auto loss = net.loss(batch.at("tokens"), batch.at("labels"));
    loss.backward();
    result.losses.push_back(loss.item<double>());
    result.norms.push_back(
        nn::utils::clip_grad_norm_(net.parameters(), spec.clip_norm.value_or(1e30)));
    optimizer.step();
  }
  result.parameters = state_of(net);
  return result;
}

Trained train_convolution(int64_t ranks, int64_t microbatches) {
  Convolution net;
  return train_module(net, images_of, [&](const Batch& batch) { return net.loss(batch); }, kSgd,
                      {.count = ranks, .microbatches = microbatches});
}

Trained train_convolution_eagerly(int64_t microbatches) {
  Convolution net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(kSgd.lr)
                                                    .momentum(kSgd.spec.options.at("momentum"))
                                                    .weight_decay(kSgd.spec.weight_decay));
  Trained result;
  for (int64_t step = 1; step <= kSgd.steps; ++step) {
    const auto batch = images_of(step);
    optimizer.zero_grad();
    double total = 0;
    for (int64_t m = 0; m < microbatches; ++m) {
      const auto loss = net.loss(piece(batch, m, kSgd.batch / microbatches)) / microbatches;
      loss.backward();
      total += loss.item<double>();
    }
    result.losses.push_back(total);
    result.norms.push_back(nn::utils::clip_grad_norm_(net.parameters(), 1e30));
    optimizer.step();
  }
  result.parameters = state_of(net);
  return result;
}

std::string compare(const Trained& a, const Trained& b, double tolerance) {
  for (size_t k = 0; k < b.losses.size(); ++k) {
    if (!(relative(a.losses.at(k), b.losses[k]) <= tolerance)) {
      return fmt::format("loss {}: {} and {}", k + 1, a.losses[k], b.losses[k]);
    }
    if (!(relative(a.norms.at(k), b.norms[k]) <= tolerance)) {
      return fmt::format("norm {}: {} and {}", k + 1, a.norms[k], b.norms[k]);
    }
  }
  for (const auto& [name, tensor] : b.parameters) {
    if (!a.parameters.contains(name)) return "no " + name;
  }
  for (const auto& [name, tensor] : a.parameters) {
    const auto found = b.parameters.find(name);
    if (found == b.parameters.end()) return "no " + name;
    const double distance = (tensor - found->second).abs().max().to(at::kDouble).item<double>();
    if (!(distance <=
          tolerance * std::max(1.0, tensor.abs().max().to(at::kDouble).item<double>()))) {
      return fmt::format("{}: {} apart", name, distance);
    }
  }
  return "";
}

}  // namespace perigee::parity
