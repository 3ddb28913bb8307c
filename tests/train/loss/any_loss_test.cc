// Losses of models in which samples are not always dim 0, cut into microbatches.
#include "tests/train/loss/losses.h"

using namespace perigee;
using namespace perigee::losses;

namespace {

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
  for (const double least : {0.01, 0.45, 0.9}) {  // means
    check_cut([&](const torch::Tensor& out, const Batch& batch) {
      const auto kept = batch.at("kept").to(torch::kDouble), weight = batch.at("weight");
      const auto mean = (errors(out, batch) * kept).mean() / kept.mean().clamp_min(least);
      return mean + (errors(out, batch).mean(1) / weight.mean().sqrt()).mean();
    });
  }
  check_cut([](const torch::Tensor& out, const Batch& batch) {
    const auto weight = batch.at("weight");
    return (errors(out, batch).mean(1) * weight).sum() / weight.mean();
  });
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

TEST_CASE("dropout of samples within a merged dim draws the numbers of the whole batch") {
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // [positions * samples]
    const auto merged = errors(out, batch).transpose(0, 1).reshape({-1});
    return torch::dropout(merged, 0.5, true).mean();
  });
  check_cut([](const torch::Tensor& out, const Batch& batch) {  // [positions, samples, numbers]
    const auto merged = errors(out, batch).view({-1, 2, 2}).permute({1, 0, 2}).reshape({-1});
    return (merged * torch::rand_like(merged)).mean();
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
  refused(
      [](const torch::Tensor& out, const Batch&) {
        return F::embedding(torch::tensor({0, 1}), out).pow(2).mean();
      },
      "the proof ends at aten::embedding in scope \"\", which takes some of the samples");
  refused(
      [](const torch::Tensor& out, const Batch& batch) {
        const auto more = torch::ones({out.size(1), batch.at("y").size(1)}, torch::kDouble);
        return torch::addmm(more, out.t(), batch.at("y")).sum() / out.size(0);
      },
      "the proof ends at aten::addmm in scope \"\", which adds a value to a sum over samples");
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
