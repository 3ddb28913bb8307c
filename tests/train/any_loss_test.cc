// Losses of models in which samples are not always dim 0, cut into microbatches.
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <torch/nn.h>

#include <cmath>

#include "base/error.h"
#include "tests/support/torch_test.h"
#include "train/trainer.h"

using namespace perigee;

namespace {

namespace F = torch::nn::functional;

// A module with the forward function of a test.
struct Family {
  std::shared_ptr<torch::nn::Module> module;
  Batch batch;  // the samples of a step
  Forward forward;
  std::vector<std::string> starts;  // of the second pipeline stage
};

torch::Tensor real(std::vector<int64_t> shape, double phase) {
  const auto count = c10::multiply_integers(shape);
  return torch::arange(0, count, torch::kDouble).mul(0.7).add(phase).sin().reshape(shape);
}

torch::Tensor whole(std::vector<int64_t> shape, int64_t below) {
  return (torch::arange(c10::multiply_integers(shape)) * 7 + 3).remainder(below).reshape(shape);
}

// torch::nn::Transformer, whose samples are dim 1.
class Translator : public torch::nn::Module {
 public:
  Translator() {
    torch::manual_seed(5);
    transformer_ = register_module("transformer",
                                   torch::nn::Transformer(torch::nn::TransformerOptions(8, 2)
                                                              .num_encoder_layers(2)
                                                              .num_decoder_layers(2)
                                                              .dim_feedforward(12)
                                                              .dropout(0)));
    to(torch::kDouble);
  }
  Result run(const Batch& batch) {
    const auto source = batch.at("source").transpose(0, 1), target = batch.at("target");
    const auto mask = torch::full({3, 3}, -1e9, torch::kDouble).triu(1);
    const auto out = transformer_->forward(source, target.transpose(0, 1), {}, mask);
    return {(out.transpose(0, 1) - target).pow(2).mean()};
  }

 private:
  torch::nn::Transformer transformer_{nullptr};
};

Family translator() {
  auto net = std::make_shared<Translator>();
  return {net,
          {{"source", real({8, 5, 8}, 0)}, {"target", real({8, 3, 8}, 2)}},
          [net](const Batch& batch) { return net->run(batch); },
          {"transformer.decoder"}};
}

// Encoder layers over a sequence that comes first, with a class token before it.
class Classifier : public torch::nn::Module {
 public:
  Classifier() {
    torch::manual_seed(6);
    embed_ = register_module("embed", torch::nn::Linear(4, 8));
    token_ = register_parameter("token", torch::randn({1, 1, 8}));
    layers_ = register_module("layers", torch::nn::ModuleList());
    for (int i = 0; i < 2; ++i) {
      layers_->push_back(torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0)));
    }
    head_ = register_module("head", torch::nn::Linear(8, 5));
    to(torch::kDouble);
  }
  Result run(const Batch& batch) {
    auto x = embed_->forward(batch.at("patches")).transpose(0, 1);
    x = torch::cat({token_.expand({1, x.size(1), 8}), x});
    for (const auto& layer : *layers_) {
      x = layer->as<torch::nn::TransformerEncoderLayer>()->forward(x);
    }
    const auto options = F::CrossEntropyFuncOptions().label_smoothing(0.1).ignore_index(4);
    return {F::cross_entropy(head_->forward(x[0]), batch.at("label"), options)};
  }

 private:
  torch::nn::Linear embed_{nullptr}, head_{nullptr};
  torch::Tensor token_;
  torch::nn::ModuleList layers_{nullptr};
};

Family classifier() {
  auto net = std::make_shared<Classifier>();
  return {net,
          {{"patches", real({8, 6, 4}, 0)}, {"label", whole({8}, 5)}},
          [net](const Batch& batch) { return net->run(batch); },
          {"layers.1"}};
}

// Sums of embedding bags, and a binary cross entropy.
class Clicks : public torch::nn::Module {
 public:
  Clicks() {
    torch::manual_seed(7);
    const auto bag = [](int64_t rows) {
      return torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(rows, 6).mode(torch::kSum));
    };
    users_ = register_module("users", bag(11));
    items_ = register_module("items", bag(7));
    hidden_ = register_module("hidden", torch::nn::Linear(6, 8));
    head_ = register_module("head", torch::nn::Linear(8, 1));
    to(torch::kDouble);
  }
  Result run(const Batch& batch) {
    const auto x = users_->forward(batch.at("users")) + items_->forward(batch.at("items"));
    const auto logits = head_->forward(torch::relu(hidden_->forward(x))).squeeze(1);
    return {F::binary_cross_entropy_with_logits(logits, batch.at("clicked"))};
  }

 private:
  torch::nn::EmbeddingBag users_{nullptr}, items_{nullptr};
  torch::nn::Linear hidden_{nullptr}, head_{nullptr};
};

Family clicks() {
  auto net = std::make_shared<Clicks>();
  return {net,
          {{"users", whole({8, 3}, 11)},
           {"items", whole({8, 2}, 7)},
           {"clicked", whole({8}, 2).to(torch::kDouble)}},
          [net](const Batch& batch) { return net->run(batch); },
          {"head"}};
}

// A linear map and a loss of its outputs, [samples, 4], and the batch.
class Mapped : public torch::nn::Module {
 public:
  Mapped() {
    torch::manual_seed(8);
    linear_ = register_module("linear", torch::nn::Linear(4, 4));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return linear_->forward(x); }

 private:
  torch::nn::Linear linear_{nullptr};
};

using LossOf = std::function<torch::Tensor(const torch::Tensor&, const Batch&)>;

Family mapped(const LossOf& loss) {
  auto net = std::make_shared<Mapped>();
  return {
      net,
      {{"x", real({8, 4}, 0)},
       {"y", real({8, 4}, 1)},
       {"weight", real({8}, 3).abs()},
       {"kept", whole({8, 4}, 3).gt(0)},
       {"place", whole({8}, 4)}},
      [net, loss](const Batch& batch) { return Result{loss(net->forward(batch.at("x")), batch)}; }};
}

torch::Tensor errors(const torch::Tensor& out, const Batch& batch) {
  return (out - batch.at("y")).pow(2);
}

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

// Makes a model with its first weights.
using Maker = std::function<Family()>;

Trained run(const Maker& make, int64_t micro, const std::string& methods = "",
            const std::string& keys = "") {
  const auto family = make();
  const auto source = perigee::source(family.module, family.batch, family.forward);
  auto job = Job::parse(
      fmt::format("[model]\nkind = 'mlp'\ndtype = 'float64'\n[batch]\nglobal = 8\n[train]\n"
                  "steps = 2\nvalidate_every = 0\n[cluster]\ndevice = 'cpu'\n{}",
                  keys),
      "test.toml");
  job.batch.micro = micro;
  const int64_t ranks = methods.empty() ? 1 : 2;
  const auto strategy = Strategy::data(methods.empty() ? "[]" : methods);
  Trainer trainer{*family.module, make_plan(source, strategy, job, {ranks}), job,
                  Ranks::threads(ranks), nullptr};
  Trained trained;
  for (int step = 0; step < 2; ++step) trained.losses.push_back(trainer.step(family.batch).loss);
  trainer.copy_to(*family.module);
  for (const auto& item : family.module->named_parameters()) {
    trained.weights[item.key()] = item.value().detach();
  }
  return trained;
}

void check_equal(const Trained& a, const Trained& b) {
  CHECK(a.losses[0] != a.losses[1]);
  for (size_t i = 0; i < a.losses.size(); ++i) {
    CHECK(std::abs(a.losses[i] - b.losses[i]) < 1e-10);
  }
  for (const auto& [name, weight] : a.weights) {
    INFO(name);
    CHECK(at::allclose(weight, b.weights.at(name), 1e-9, 1e-10));
  }
}

// The loss is cut with the numbers of the whole batch, also over two data ranks.
void check_cut(const LossOf& loss) {
  const auto family = [&] { return mapped(loss); };
  const auto one = run(family, 8);
  check_equal(one, run(family, 2));
  check_equal(one, run(family, 2, R"([["parallel_mode", [["data", 2]]]])"));
}

}  // namespace

TEST_CASE(
    "models whose samples are not dim 0 train in microbatches and in a pipeline as on the "
    "whole batch") {
  const auto check = [](const std::string& name, const Maker& family) {
    INFO(name);
    const auto one = run(family, 8);
    for (const int64_t micro : {4, 2}) check_equal(one, run(family, micro));
    const auto pipeline = fmt::format(
        R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {{"starts": ["{}"]}}]])",
        family().starts[0]);
    check_equal(one, run(family, 2, pipeline));
  };
  SECTION("torch::nn::Transformer") { check("transformer", translator); }
  SECTION("class token") { check("class token", classifier); }
  SECTION("embedding bags") { check("bags", clicks); }
}

TEST_CASE("sums divided by sums of weights are cut into microbatches") {
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // a mask
    const auto kept = batch.at("kept");
    return (errors(out, batch) * kept).sum() / kept.sum();
  });
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // shares
    const auto weight = batch.at("weight");
    return (errors(out, batch).mean(1) * (weight / weight.sum())).sum();
  });
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // two of them, one with a dim
    const auto kept = batch.at("kept").to(torch::kDouble), weight = batch.at("weight");
    const auto both = (errors(out, batch) * kept).sum() / kept.sum().reshape({1});
    return both.squeeze() +
           0.5 * errors(out, batch).mv(torch::ones({4}, torch::kDouble)).dot(weight) / weight.sum();
  });
}

TEST_CASE("sums divided by functions of sums of weights are cut into microbatches") {
  // Of 32 numbers 13 are kept, of no microbatch more than 8.
  for (const int64_t least : {1, 10, 100}) {
    check_cut([&](const torch::Tensor& out, const Batch& batch) {
      const auto kept = batch.at("kept");
      return (errors(out, batch) * kept).sum() / kept.sum().clamp_min(least);
    });
  }
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // two steps, of shares
    const auto weight = batch.at("weight");
    const auto total = (weight.sum().reshape({1}) + 1).clamp(0, 3);
    return (errors(out, batch).mean(1) * (weight / total)).sum();
  });
}

TEST_CASE("weights of classes are buffers that a loss may divide by") {
  const auto family = [] {
    auto made = mapped([](const torch::Tensor&, const Batch&) { return torch::Tensor(); });
    auto net = std::dynamic_pointer_cast<Mapped>(made.module);
    const auto weight = net->register_buffer("classes", real({4}, 1).abs());
    made.forward = [net, weight](const Batch& batch) {
      const auto options = F::CrossEntropyFuncOptions().weight(weight).ignore_index(2);
      const auto loss = F::cross_entropy(net->forward(batch.at("x")), batch.at("place"), options);
      const auto chosen = weight.index({batch.at("place")});
      return Result{loss + (net->forward(batch.at("y")).mean(1) * chosen).sum() / chosen.sum()};
    };
    return made;
  };
  const auto one = run(family, 8);
  check_equal(one, run(family, 2));
  check_equal(one, run(family, 2, R"([["parallel_mode", [["data", 2]]], "fsdp"])"));
}

TEST_CASE("samples are followed through merged and joined dims and positions") {
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // [a; b] and its halves
    const auto both = torch::cat({out, batch.at("y")}).tanh().split(out.size(0));
    return (both[0] - both[1]).pow(2).mean();
  });
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // an element of each sample
    const auto rows = torch::arange(out.size(0));
    return out.index({rows, batch.at("place")}).pow(2).sum();
  });
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // between two other dims
    const auto folded = errors(out, batch).view({-1, 2, 2}).permute({1, 0, 2}).reshape({-1});
    return folded.view({2, -1}).transpose(0, 1).reshape({-1, 4}).logsumexp(1).mean();
  });
}

TEST_CASE("samples are followed through Fourier transforms, linear algebra and sorting") {
  check_cut([](const torch::Tensor& out, const Batch& batch) {
    const auto spectrum = torch::fft_rfft(out, std::nullopt, 1) *
                          torch::fft_rfft(batch.at("y"), std::nullopt, 1).conj();
    return torch::fft_irfft(spectrum, 4, 1).pow(2).mean() + spectrum.abs().sum(1).mean();
  });
  check_cut([](const torch::Tensor& out, const Batch& batch) {
    const auto a = out.view({-1, 2, 2});
    const auto definite = a.matmul(a.transpose(1, 2)) + torch::eye(2, torch::kDouble);
    const auto solved = torch::linalg_solve(definite, batch.at("y").view({-1, 2, 2}));
    const auto lower = torch::linalg_cholesky(definite);
    return solved.pow(2).sum() + lower.diagonal(0, 1, 2).log().sum();
  });
  check_cut([](const torch::Tensor& out, const Batch& batch) {
    const auto largest = std::get<0>(out.cummax(1)).sum(1) + std::get<0>(out.sort(1)).select(1, 2);
    const auto places = torch::bucketize(batch.at("weight"),
                                         torch::tensor({0.5, 1.0}, torch::kDouble));
    return (largest.pow(2) * places).mean();
  });
}

TEST_CASE("a loss in which samples depend on each other is refused by the op that combines them") {
  const auto refused = [](const LossOf& loss, const std::string& message) {
    const auto family = [&] { return mapped(loss); };
    const auto one = run(family, 8);
    check_equal(one, run(family, 4, R"([["parallel_mode", [["data", 2]]]])"));
    CHECK_THROWS_WITH(run(family, 2), Catch::Contains(message) && Catch::Contains("declare it"));
  };
  refused(
      [](const torch::Tensor& out, const Batch& batch) {  // contrastive
        const auto scores = torch::mm(out, batch.at("y").t());
        return F::cross_entropy(scores, torch::arange(out.size(0)));
      },
      "the proof ends at aten::mm in scope \"\", which combines samples with each other");
  refused([](const torch::Tensor& out, const Batch& batch) { return errors(out, batch).max(); },
          "the proof ends at aten::max in scope \"\", which");
  refused([](const torch::Tensor& out,
             const Batch& batch) { return errors(out, batch).sum() / out.abs().sum(); },
          "the proof ends at aten::div.Tensor in scope \"\", which is not linear");
  refused([](const torch::Tensor& out,
             const Batch& batch) { return (out.select(0, 0) - batch.at("y")).pow(2).mean(); },
          "the proof ends at aten::select.int in scope \"\", which takes some of the samples");
}

TEST_CASE("a factor or divisor that is the number of samples makes a mean of a sum") {
  const auto check = [](const LossOf& loss) {
    check_cut(loss);
    const auto family = [&] { return mapped(loss); };
    check_equal(run(family, 8), run(family, 1));
  };
  check([](const torch::Tensor& out, const Batch& batch) {  // each sample's
    return (errors(out, batch).mean(1) / out.size(0)).sum();
  });
  check([](const torch::Tensor& out, const Batch& batch) {
    return (errors(out, batch) * (0.5 / static_cast<double>(out.size(0)))).sum();
  });
  check([](const torch::Tensor& out, const Batch& batch) {  // a tensor
    const auto count = torch::full({}, static_cast<double>(out.numel()), torch::kDouble);
    return (errors(out, batch) / count).sum(0).sum();
  });
  check([](const torch::Tensor& out, const Batch& batch) {  // the sum's
    return errors(out, batch).sum() * (1. / static_cast<double>(out.size(0)));
  });
  check([](const torch::Tensor& out, const Batch& batch) {  // a mean becomes a sum
    return errors(out, batch).mean() * out.size(0);
  });
}

TEST_CASE("a constant that happens to be a multiple of the number of samples stays a constant") {
  for (const double constant : {8., 4., 0.125}) {
    check_cut([=](const torch::Tensor& out, const Batch& batch) {
      return (errors(out, batch) / constant).sum();
    });
    check_cut([=](const torch::Tensor& out, const Batch& batch) {
      return errors(out, batch).sum() * constant / 16.;
    });
  }
}

TEST_CASE("a loss that uses the number of samples in another way is refused") {
  const auto refused = [](const LossOf& loss) {
    const auto family = [&] { return mapped(loss); };
    CHECK_NOTHROW(run(family, 8));
    CHECK_THROWS_WITH(run(family, 2), Catch::Contains("which uses the number of samples") &&
                                          Catch::Contains("declare it"));
  };
  refused([](const torch::Tensor& out, const Batch& batch) {
    return (errors(out, batch) * out.size(0)).sum();
  });
  refused([](const torch::Tensor& out, const Batch& batch) {
    return errors(out, batch).mean() / out.size(0);
  });
  refused([](const torch::Tensor& out, const Batch& batch) {
    return errors(out, batch).sum() / (out.size(0) - 1);
  });
  refused([](const torch::Tensor& out, const Batch& batch) {
    return errors(out, batch).sum() * std::pow(out.size(0), -0.5);
  });
}

TEST_CASE("a microbatch of one sample is classified as one of more") {
  // A division by the number of samples, which is 1 in the graph of one.
  const auto family = [] {
    return mapped([](const torch::Tensor& out, const Batch& batch) {
      return errors(out, batch).sum() / out.size(0);
    });
  };
  check_equal(run(family, 8), run(family, 1));
  check_equal(run(clicks, 8), run(clicks, 1));
  check_equal(run(translator, 8), run(translator, 1));
}

namespace {

Maker declared(const LossOf& loss, Reduction reduction) {
  return [loss, reduction] {
    auto family = mapped(loss);
    family.forward = [forward = family.forward, reduction](const Batch& batch) {
      auto result = forward(batch);
      result.reduction = reduction;
      return result;
    };
    return family;
  };
}

// The logarithm of a sample's largest element, written so that no proof finds the samples.
torch::Tensor hidden(const torch::Tensor& out, const Batch&) {
  const auto order = torch::arange(out.size(0));
  return (out.index({order}).pow(2).sum(1) + 1).log();
}

}  // namespace

TEST_CASE("a declared loss is trusted once two microbatches of the first step confirm it") {
  const LossOf mean = [](const auto& out, const auto& batch) { return hidden(out, batch).mean(); };
  const LossOf sum = [](const auto& out, const auto& batch) { return hidden(out, batch).sum(); };
  const LossOf max = [](const auto& out, const auto& batch) { return hidden(out, batch).max(); };
  const LossOf weighted = [](const torch::Tensor& out, const Batch& batch) {
    const auto kept = batch.at("kept");
    return (errors(out, batch) * kept).sum() / kept.index({torch::arange(out.size(0))}).sum();
  };
  CHECK_THROWS_WITH(run(declared(mean, Reduction::proven), 2), Catch::Contains("declare it"));
  const auto check = [](const LossOf& loss, Reduction reduction) {
    const auto family = declared(loss, reduction);
    const auto one = run(family, 8);
    check_equal(one, run(family, 2));
    check_equal(one, run(family, 2, R"([["parallel_mode", [["data", 2]]]])"));
  };
  check(mean, Reduction::mean);
  check(sum, Reduction::sum);
  check(weighted, Reduction::weighted);
  const auto wrong = [](const LossOf& loss, Reduction reduction, const std::string& message) {
    const auto family = declared(loss, reduction);
    CHECK_NOTHROW(run(family, 8));  // nothing is cut
    for (const std::string methods : {"", R"([["parallel_mode", [["data", 2]]], "fsdp"])"}) {
      CHECK_THROWS_WITH(run(family, 2, methods), Catch::Contains(message));
    }
  };
  wrong(mean, Reduction::sum, "a loss that is declared a sum over samples must be one, but");
  wrong(sum, Reduction::mean, "a loss that is declared a mean over samples must be one, but");
  wrong(max, Reduction::mean, "there is no proof after aten::index.Tensor in scope");
}

TEST_CASE("a loss with constants that depend on the number of samples is checked by number") {
  const LossOf ones = [](const torch::Tensor& out, const Batch& batch) {
    const auto mask = torch::ones_like(out);
    return (errors(out, batch) * mask).sum() / mask.sum();
  };
  const LossOf places = [](const torch::Tensor& out, const Batch& batch) {
    const auto place = torch::arange(1, out.size(0) + 1, torch::kDouble);
    return errors(out, batch).mean(1).dot(place) / out.size(0);
  };
  const LossOf offset = [](const torch::Tensor& out, const Batch& batch) {
    return errors(out, batch).mean() + out.size(0) * 0.1;
  };
  for (const auto& loss : {ones, places, offset}) {
    const auto family = [&] { return mapped(loss); };
    CHECK_NOTHROW(run(family, 8));
    for (const int64_t micro : {1, 2}) {
      CHECK_THROWS_WITH(run(family, micro), Catch::Contains("a loss that is taken for a ") &&
                                                Catch::Contains("declare what it is"));
    }
  }
  const auto family = declared(ones, Reduction::mean);
  check_equal(run(family, 8), run(family, 2));
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // the same for each sample
    return (errors(out, batch) * torch::arange(4, torch::kDouble).expand_as(out)).mean();
  });
}

TEST_CASE("a declared loss is checked in a pipeline, too") {
  const auto family = [](Reduction reduction) {
    return [reduction] {
      auto made = classifier();
      made.forward = [forward = made.forward, reduction](const Batch& batch) {
        auto result = forward(batch);
        result.loss = result.loss +
                      0 * std::get<0>(batch.at("label").to(torch::kDouble).sort(0)).sum();
        result.reduction = reduction;
        return result;
      };
      return made;
    };
  };
  for (const std::string schedule : {"1f1b", "interleaved", "zbv"}) {
    INFO(schedule);
    const auto pipeline = fmt::format(
        R"([["parallel_mode", [["pipe", 2]]], ["pipeline_parallel", {{"schedule": "{}"{}}}]])",
        schedule,
        schedule == "1f1b" ? R"(, "starts": ["layers.1"])"
                           : R"(, "starts": ["layers.0", "layers.1", "head"])");
    check_equal(run(family(Reduction::mean), 8), run(family(Reduction::mean), 2, pipeline));
    CHECK_THROWS_WITH(run(family(Reduction::sum), 2, pipeline),
                      Catch::Contains("declared a sum over samples must be one"));
  }
}
