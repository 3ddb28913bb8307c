// Every loss class of the torch::nn C++ API, with each reduction.
#include <torch/nn.h>

#include "tests/capture/layers.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace perigee::test {
namespace {

using Tensors = std::vector<at::Tensor>;
using Layers = std::vector<Layer>;

// Appends the loss class Holder with the reductions none, mean and sum.
template <size_t Inputs, class Holder, class Options>
void add(Layers& layers, const std::string& name, const Options& options, const Tensors& inputs) {
  const auto with = [&](const std::string& reduction, const Options& set) {
    layers.push_back(layer<Inputs>(name + " " + reduction, Holder(set), inputs));
  };
  with("none", Options(options).reduction(torch::kNone));
  with("mean", Options(options).reduction(torch::kMean));
  with("sum", Options(options).reduction(torch::kSum));
}

at::Tensor signs(at::IntArrayRef sizes) { return integers(2, sizes) * 2 - 1; }

}  // namespace

Layers regression_losses() {
  const auto x = normal({4, 3}), y = normal({4, 3}), positive = uniform({4, 3});
  Layers layers;
  add<2, nn::L1Loss>(layers, "L1Loss", nn::L1LossOptions(), {x, y});
  add<2, nn::MSELoss>(layers, "MSELoss", nn::MSELossOptions(), {x, y});
  add<2, nn::SmoothL1Loss>(layers, "SmoothL1Loss", nn::SmoothL1LossOptions().beta(0.5), {x, y});
  add<2, nn::HuberLoss>(layers, "HuberLoss", nn::HuberLossOptions().delta(0.7), {x, y});
  add<2, nn::PoissonNLLLoss>(layers, "PoissonNLLLoss", nn::PoissonNLLLossOptions(),
                             {x, positive * 3});
  add<2, nn::PoissonNLLLoss>(layers, "PoissonNLLLoss full",
                             nn::PoissonNLLLossOptions().log_input(false).full(true),
                             {positive, positive * 3});
  add<2, nn::KLDivLoss>(layers, "KLDivLoss", nn::KLDivLossOptions(), {x, positive});
  add<2, nn::KLDivLoss>(layers, "KLDivLoss of logarithms", nn::KLDivLossOptions().log_target(true),
                        {x, y});
  layers.push_back(layer<2>("KLDivLoss batchmean",
                            nn::KLDivLoss(nn::KLDivLossOptions().reduction(torch::kBatchMean)),
                            {x, positive}));
  return layers;
}

Layers binary_losses() {
  const auto x = normal({4, 3}), positive = uniform({4, 3}), weight = uniform({3});
  Layers layers;
  add<2, nn::BCELoss>(layers, "BCELoss", nn::BCELossOptions(), {positive, uniform({4, 3})});
  add<2, nn::BCELoss>(layers, "BCELoss weighted", nn::BCELossOptions().weight(weight),
                      {positive, uniform({4, 3})});
  add<2, nn::BCEWithLogitsLoss>(layers, "BCEWithLogitsLoss", nn::BCEWithLogitsLossOptions(),
                                {x, positive});
  add<2, nn::BCEWithLogitsLoss>(
      layers, "BCEWithLogitsLoss weighted",
      nn::BCEWithLogitsLossOptions().weight(weight).pos_weight(uniform({3})), {x, positive});
  add<2, nn::SoftMarginLoss>(layers, "SoftMarginLoss", nn::SoftMarginLossOptions(),
                             {x, signs({4, 3})});
  add<2, nn::HingeEmbeddingLoss>(layers, "HingeEmbeddingLoss", nn::HingeEmbeddingLossOptions(),
                                 {x, signs({4, 3})});
  add<2, nn::MultiLabelSoftMarginLoss>(layers, "MultiLabelSoftMarginLoss",
                                       nn::MultiLabelSoftMarginLossOptions().weight(weight),
                                       {x, uniform({4, 3}).round()});
  return layers;
}

Layers margin_losses() {
  const auto a = normal({4, 3}), b = normal({4, 3}), c = normal({4, 3});
  Layers layers;
  add<3, nn::MarginRankingLoss>(layers, "MarginRankingLoss", nn::MarginRankingLossOptions(),
                                {normal({4}), normal({4}), signs({4})});
  add<3, nn::CosineEmbeddingLoss>(layers, "CosineEmbeddingLoss", nn::CosineEmbeddingLossOptions(),
                                  {a, b, signs({4})});
  add<3, nn::TripletMarginLoss>(layers, "TripletMarginLoss", nn::TripletMarginLossOptions(),
                                {a, b, c});
  add<3, nn::TripletMarginLoss>(layers, "TripletMarginLoss swapped",
                                nn::TripletMarginLossOptions().swap(true).p(1), {a, b, c});
  add<3, nn::TripletMarginWithDistanceLoss>(layers, "TripletMarginWithDistanceLoss",
                                            nn::TripletMarginWithDistanceLossOptions(), {a, b, c});
  add<2, nn::MultiMarginLoss>(layers, "MultiMarginLoss",
                              nn::MultiMarginLossOptions().weight(uniform({3})),
                              {a, integers(3, {4})});
  add<2, nn::MultiLabelMarginLoss>(layers, "MultiLabelMarginLoss",
                                   nn::MultiLabelMarginLossOptions(),
                                   {normal({2, 4}), torch::tensor({{3, 0, -1, 1}, {1, -1, 0, 2}})});
  return layers;
}

Layers label_losses() {
  const auto labels = torch::tensor({1, 0, 2, 1});
  const auto some = torch::tensor({1, -100, 2, -100}), other = torch::tensor({1, 0, 2, 0});
  const auto weight = uniform({3}), x = normal({4, 3});
  using Nll = nn::NLLLossOptions;
  using CrossEntropy = nn::CrossEntropyLossOptions;
  Layers layers;
  const auto nll = [&](const std::string& how, const Nll& options, const Tensors& in) {
    add<2, nn::NLLLoss>(layers, "NLLLoss" + how, options, in);
  };
  const auto cross = [&](const std::string& how, const CrossEntropy& options, const Tensors& in) {
    add<2, nn::CrossEntropyLoss>(layers, "CrossEntropyLoss" + how, options, in);
  };
  nll("", Nll(), {x, some});
  nll(" weighted", Nll().weight(weight).ignore_index(0), {x, other});
  nll(" 2d", Nll().weight(weight), {normal({2, 3, 2, 2}), integers(3, {2, 2, 2})});
  cross("", CrossEntropy(), {x, labels});
  cross(" ignoring", CrossEntropy(), {x, some});
  cross(" weighted", CrossEntropy().weight(weight).ignore_index(0), {x, other});
  cross(" smoothed", CrossEntropy().label_smoothing(0.2), {x, some});
  cross(" smoothed and weighted",
        CrossEntropy().label_smoothing(0.2).weight(weight).ignore_index(0), {x, other});
  cross(" of images", CrossEntropy().label_smoothing(0.1),
        {normal({2, 3, 2, 2}), integers(3, {2, 2, 2})});
  cross(" of probabilities", CrossEntropy().label_smoothing(0.1).weight(weight),
        {x, uniform({4, 3})});
  cross(" of one sample", CrossEntropy(), {normal({3}), torch::tensor(1)});
  return layers;
}

TEST_CASE("regression losses equal eager autograd") {
  for (const auto& layer : regression_losses()) check_layer(layer);
}
TEST_CASE("binary losses equal eager autograd") {
  for (const auto& layer : binary_losses()) check_layer(layer);
}
TEST_CASE("margin losses equal eager autograd") {
  for (const auto& layer : margin_losses()) check_layer(layer);
}
TEST_CASE("losses of labels equal eager autograd, ignored labels and class weights included") {
  for (const auto& layer : label_losses()) check_layer(layer);
}

TEST_CASE("a mean loss is a sum divided by the step average of the labels' weights") {
  const auto x = torch::zeros({4, 3}, torch::kFloat64).requires_grad_();
  nn::ParameterList holder;
  holder->append(x);
  const Batch batch{{"labels", torch::tensor({1, -100, 2, 0})}};
  const auto captured = capture(
      *holder, batch, [&](const Batch& b) { return Result{F::cross_entropy(x, b.at("labels"))}; });
  std::vector<std::string> ops;
  for (const auto& node : captured.graph.nodes) {
    if (node.phase == graph::Phase::forward) ops.push_back(node.op);
  }
  CHECK(ops == std::vector<std::string>{"perigee::cross_entropy", "perigee::label_weight",
                                        "perigee::step_average", "aten::sum", "aten::div.Tensor"});
}

}  // namespace perigee::test
