// Every loss class of the torch::nn C++ API, with each reduction.
#include "tests/capture/support.h"

namespace nn = torch::nn;
namespace F = torch::nn::functional;

namespace perigee::test {
namespace {

using Tensors = std::vector<at::Tensor>;

// F::loss(inputs..., options.reduction(...)) for none, mean and sum.
template <size_t Inputs, class Options, class Function>
void check_loss(const std::string& name, Function function, Options options,
                const Tensors& inputs) {
  const auto run = [&](const std::string& reduction, const Options& set) {
    check_layer({name + " " + reduction, nullptr, inputs, [=](const Tensors& in) -> Tensors {
                   return [&]<size_t... I>(std::index_sequence<I...>)->Tensors {
                     return {function(in[I]..., set)};
                   }
                   (std::make_index_sequence<Inputs>());
                 }});
  };
  run("none", Options(options).reduction(torch::kNone));
  run("mean", Options(options).reduction(torch::kMean));
  run("sum", Options(options).reduction(torch::kSum));
}

at::Tensor signs(at::IntArrayRef sizes) { return integers(2, sizes) * 2 - 1; }

}  // namespace

TEST_CASE("regression losses equal eager autograd") {
  const auto x = normal({4, 3}), y = normal({4, 3});
  check_loss<2>("L1Loss", F::l1_loss, F::L1LossFuncOptions(), {x, y});
  check_loss<2>("MSELoss", F::mse_loss, F::MSELossFuncOptions(), {x, y});
  check_loss<2>("SmoothL1Loss",
                [](const at::Tensor& a, const at::Tensor& b, const F::SmoothL1LossFuncOptions& o) {
                  return F::smooth_l1_loss(a, b, o);
                },
                F::SmoothL1LossFuncOptions().beta(0.5), {x, y});
  check_loss<2>("HuberLoss", F::huber_loss, F::HuberLossFuncOptions().delta(0.7), {x, y});
  check_loss<2>("PoissonNLLLoss", F::poisson_nll_loss, F::PoissonNLLLossFuncOptions(),
                {x, uniform({4, 3}) * 3});
  check_loss<2>("KLDivLoss", F::kl_div, F::KLDivFuncOptions(), {x, uniform({4, 3})});
  check_layer(
      {"KLDivLoss batchmean", nullptr, {x, uniform({4, 3})}, [](const Tensors& in) -> Tensors {
         return {F::kl_div(in[0], in[1], F::KLDivFuncOptions().reduction(torch::kBatchMean))};
       }});
}

TEST_CASE("binary losses equal eager autograd") {
  const auto x = normal({4, 3});
  check_loss<2>("BCELoss", F::binary_cross_entropy,
                F::BinaryCrossEntropyFuncOptions().weight(uniform({3})),
                {uniform({4, 3}), uniform({4, 3})});
  check_loss<2>(
      "BCEWithLogitsLoss", F::binary_cross_entropy_with_logits,
      F::BinaryCrossEntropyWithLogitsFuncOptions().weight(uniform({3})).pos_weight(uniform({3})),
      {x, uniform({4, 3})});
  check_loss<2>("SoftMarginLoss", F::soft_margin_loss, F::SoftMarginLossFuncOptions(),
                {x, signs({4, 3})});
  check_loss<2>("HingeEmbeddingLoss", F::hinge_embedding_loss, F::HingeEmbeddingLossFuncOptions(),
                {x, signs({4, 3})});
  check_loss<2>("MultiLabelSoftMarginLoss", F::multilabel_soft_margin_loss,
                F::MultilabelSoftMarginLossFuncOptions(), {x, uniform({4, 3}).round()});
}

TEST_CASE("margin losses equal eager autograd") {
  const auto a = normal({4, 3}), b = normal({4, 3}), c = normal({4, 3});
  check_loss<3>("MarginRankingLoss", F::margin_ranking_loss, F::MarginRankingLossFuncOptions(),
                {normal({4}), normal({4}), signs({4})});
  check_loss<3>("CosineEmbeddingLoss", F::cosine_embedding_loss,
                F::CosineEmbeddingLossFuncOptions(), {a, b, signs({4})});
  check_loss<3>("TripletMarginLoss", F::triplet_margin_loss, F::TripletMarginLossFuncOptions(),
                {a, b, c});
  check_loss<3>("TripletMarginWithDistanceLoss", F::triplet_margin_with_distance_loss,
                F::TripletMarginWithDistanceLossFuncOptions(), {a, b, c});
  check_loss<2>("MultiMarginLoss", F::multi_margin_loss,
                F::MultiMarginLossFuncOptions().weight(uniform({3})), {a, integers(3, {4})});
  check_loss<2>("MultiLabelMarginLoss", F::multilabel_margin_loss,
                F::MultilabelMarginLossFuncOptions(),
                {normal({2, 4}), torch::tensor({{3, 0, -1, 1}, {1, -1, 0, 2}})});
}

TEST_CASE("losses of labels equal eager autograd, ignored labels and class weights included") {
  const auto labels = torch::tensor({1, 0, 2, 1});
  const auto some = torch::tensor({1, -100, 2, -100}), other = torch::tensor({1, 0, 2, 0});
  const auto weight = uniform({3});
  const auto x = normal({4, 3});
  using CrossEntropy = F::CrossEntropyFuncOptions;
  check_loss<2>("NLLLoss", F::nll_loss, F::NLLLossFuncOptions(), {x, some});
  check_loss<2>("NLLLoss weighted", F::nll_loss,
                F::NLLLossFuncOptions().weight(weight).ignore_index(0), {x, other});
  check_loss<2>("NLLLoss 2d", F::nll_loss, F::NLLLossFuncOptions().weight(weight),
                {normal({2, 3, 2, 2}), integers(3, {2, 2, 2})});
  check_loss<2>("CrossEntropyLoss", F::cross_entropy, CrossEntropy(), {x, labels});
  check_loss<2>("CrossEntropyLoss ignoring", F::cross_entropy, CrossEntropy(), {x, some});
  check_loss<2>("CrossEntropyLoss weighted", F::cross_entropy,
                CrossEntropy().weight(weight).ignore_index(0), {x, other});
  check_loss<2>("CrossEntropyLoss smoothed", F::cross_entropy, CrossEntropy().label_smoothing(0.2),
                {x, some});
  check_loss<2>("CrossEntropyLoss smoothed and weighted", F::cross_entropy,
                CrossEntropy().label_smoothing(0.2).weight(weight).ignore_index(0), {x, other});
  check_loss<2>("CrossEntropyLoss of images", F::cross_entropy, CrossEntropy().label_smoothing(0.1),
                {normal({2, 3, 2, 2}), integers(3, {2, 2, 2})});
  check_loss<2>("CrossEntropyLoss of probabilities", F::cross_entropy,
                CrossEntropy().label_smoothing(0.1).weight(weight), {x, uniform({4, 3})});
  check_loss<2>("CrossEntropyLoss of one sample", F::cross_entropy, CrossEntropy(),
                {normal({3}), torch::tensor(1)});
}

TEST_CASE("a loss that is a mean is a sum over a step average of the labels' weights") {
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
