// Ops that give silently wrong results if a shard is treated as the whole tensor: sizes that do not
// divide, ignored labels, negative dims and indices, partial sums. Captured with their gradients,
// on random meshes with random placements, against one device.
#include <torch/nn/functional/embedding.h>
#include <torch/nn/functional/instancenorm.h>
#include <torch/nn/functional/loss.h>

#include "capture/capture.h"
#include "tests/parity/rules/support_plan.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

namespace F = torch::nn::functional;
using at::Tensor;

// The operands of a family: y = x @ weight [7, 6], which may be Partial, and labels [7] in [0, 6),
// some of them -100.
struct Operands {
  Tensor x, weight, y, labels, table;  // table [9, 5]: rows by label
};
using Family = std::function<Tensor(const Operands&)>;

struct Net : torch::nn::Module {
  Tensor weight = register_parameter("weight", at::randn({5, 6}, at::kDouble));
  Tensor table = register_parameter("table", at::randn({9, 5}, at::kDouble));
};

Tensor known(const Operands& o) { return o.labels.clamp_min(0); }

const std::map<std::string, Family>& families() {
  static const std::map<std::string, Family> all = {
      {"kl, mean of the batch",
       [](auto& o) {
         return F::kl_div(at::log_softmax(o.y, 1), at::softmax(o.y.detach() * 2, 1),
                          F::KLDivFuncOptions(torch::kBatchMean));
       }},
      {"cross entropy with weights, smoothing and ignored labels",
       [](auto& o) {
         return F::cross_entropy(o.y, o.labels,
                                 F::CrossEntropyFuncOptions()
                                     .weight(at::arange(1, 7, at::kDouble))
                                     .label_smoothing(0.2));
       }},
      {"nll with weights, an ignored class and a sum",
       [](auto& o) {
         return F::nll_loss(at::log_softmax(o.y, -1), known(o),
                            F::NLLLossFuncOptions()
                                .weight(at::arange(1, 7, at::kDouble))
                                .ignore_index(2)
                                .reduction(torch::kSum));
       }},
      {"huber, smooth l1 and mse means",
       [](auto& o) {
         const auto t = o.y.detach() + 0.7;
         return F::huber_loss(o.y, t, F::HuberLossFuncOptions().delta(0.5)) +
                F::smooth_l1_loss(o.y, t.abs()) + F::mse_loss(o.y, t.sin());
       }},
      {"binary cross entropy with logits",
       [](auto& o) {
         return F::binary_cross_entropy_with_logits(
             o.y, at::sigmoid(o.y.detach() * 2),
             F::BinaryCrossEntropyWithLogitsFuncOptions().pos_weight(
                 at::arange(1, 7, at::kDouble)));
       }},
      {"instance norm",
       [](auto& o) {
         return F::instance_norm(o.y.view({7, 2, 3})).pow(3).sum();
       }},
      {"batch norm",
       [](auto& o) {
         return at::batch_norm(o.y, {}, {}, {}, {}, true, 0.1, 1e-5, false).pow(3).sum();
       }},
      {"group norm",
       [](auto& o) {
         return at::group_norm(o.y.view({7, 6, 1}), 3).pow(3).mean();
       }},
      {"statistics",
       [](auto& o) {
         return o.y.var(0).sum() + o.y.std(-1, false).sum() + o.y.norm(3, {0}).sum() +
                o.y.logsumexp(-2).sum() + o.y.prod(-1).sum();
       }},
      {"order",
       [](auto& o) {
         return std::get<0>(o.y.sort(0)).select(0, -2).sum() +
                std::get<0>(o.y.topk(3, -1)).pow(2).sum() + o.y.cumsum(0).pow(2).mean() +
                std::get<0>(o.y.max(0)).sum() * o.y.amin(1).sum();
       }},
      {"places",
       [](auto& o) {
         return o.y.slice(0, -3).pow(2).sum() + o.y.select(1, -1).exp().sum() +
                (o.y.flip({0}) * o.y).sum() + (o.y.roll(2, -2) * o.y).sum() +
                o.y.narrow(0, 0, 6).tril(-1).pow(2).sum() +
                o.y.narrow(0, 1, 6).diagonal().pow(2).sum() +
                at::constant_pad_nd(o.y, {1, -2, 2, 0}, 0.5).pow(2).sum() +
                o.y.unfold(0, 3, 2).pow(2).sum();
       }},
      {"positions",
       [](auto& o) {
         const auto place = at::arange(7, at::kDouble).unsqueeze(1);
         const auto mask = at::ones({7, 6}, at::kDouble).triu(1);
         return (o.y * place + mask).pow(2).mean();
       }},
      {"indices",
       [](auto& o) {
         const auto index = known(o);
         return o.y.gather(-1, index.unsqueeze(1)).pow(2).sum() +
                o.y.index_select(0, index).pow(2).sum() +
                o.y.index({index, torch::tensor({-1, -6, 2, 0, 1, -2, 3})}).pow(3).sum() +
                at::zeros({6, 6}, at::kDouble).index_add(0, index, o.y).pow(2).sum() +
                (at::one_hot(index, 6) * o.y).pow(2).sum();
       }},
      {"writes",
       [](auto& o) {
         const auto index = known(o);
         const auto put = at::zeros({6, 6}, at::kDouble).index_put({index}, o.y, true);
         const auto rows = index.unsqueeze(1).expand({7, 6});
         return put.pow(2).sum() +
                at::zeros({7, 6}, at::kDouble).scatter_add(0, rows, o.y).pow(2).sum();
       }},
      {"joins and parts",
       [](auto& o) {
         const auto parts = o.y.split(std::vector<int64_t>{1, 2, 3}, -1);
         const auto chunks = o.y.chunk(3, 0);
         return at::cat({parts[2], parts[0]}, 1).pow(2).sum() +
                at::cat({chunks[1], o.y}, 0).exp().sum() + o.y.repeat({2, 1}).pow(2).sum();
       }},
      {"images",
       [](auto& o) {
         const auto image = o.y.narrow(0, 0, 6).reshape({1, 4, 3, 3});
         const auto kernel = o.weight.reshape({2, 15}).narrow(1, 0, 12).reshape({2, 4, 3, 1});
         return at::pixel_shuffle(image, 2).pow(2).sum() +
                at::conv2d(image, kernel, {}, 1, at::IntArrayRef({1, 0})).pow(2).sum() +
                at::avg_pool2d(image, 2, 1).pow(2).sum();
       }},
      {"biases of reductions",
       [](auto& o) {
         const auto image = o.y.narrow(0, 0, 6).reshape({1, 4, 3, 3});
         const auto kernel = o.weight.reshape({2, 15}).narrow(1, 0, 12).reshape({2, 4, 3, 1});
         const auto bias = o.weight.select(0, -1).narrow(0, 0, 2);
         return at::conv2d(image, kernel, bias).pow(2).mean() +
                at::baddbmm(o.y.narrow(1, 0, 4).reshape({7, 2, 2}), o.y.view({7, 2, 3}),
                            o.y.view({7, 3, 2}))
                    .pow(2)
                    .mean() +
                at::linear(o.y, o.weight, o.table.select(1, -2).narrow(0, 0, 5)).exp().mean();
       }},
      {"choices",
       [](auto& o) {
         return (at::one_hot(o.y.argmax(-1), 6) * o.y).pow(2).sum() +
                at::softmax(o.y, 0).pow(2).sum() + at::log_softmax(o.y, -2).exp().pow(3).sum() +
                o.y.masked_fill(o.labels.unsqueeze(1) < 0, 0.5).pow(2).sum() +
                at::where(o.y > 0, o.y, o.y * 0.1).pow(2).mean();
       }},
      {"pools and attention over earlier positions",
       [](auto& o) {
         const auto image = o.y.narrow(0, 0, 6).reshape({1, 4, 3, 3});
         const auto heads = o.y.view({7, 2, 3}).transpose(0, 1).unsqueeze(0);
         return at::max_pool2d(image, 2, 1).pow(2).sum() +
                at::scaled_dot_product_attention(heads, heads * 0.5, heads, {}, 0.0, true)
                    .pow(2)
                    .sum() +
                (at::eye(7, 6, at::kDouble) * o.y).pow(2).sum();
       }},
      {"merged dims",
       [](auto& o) {
         const auto flat = o.y.reshape({42});
         return (flat * at::arange(42, at::kDouble)).sum() +
                o.y.reshape({7, 2, 3}).transpose(0, 1).reshape({2, 21}).pow(2).sum();
       }},
      {"products of partial sums",
       [](auto& o) {
         const auto z = at::matmul(o.x, o.weight);
         return (at::relu(o.y) + 1).mean() + (o.y * z).sum() + (o.y + z).pow(2).sum() +
                at::addmm(o.y.sum(0), o.y, o.weight.t().matmul(o.weight)).pow(2).mean() +
                o.y.to(at::kFloat).to(at::kDouble).sum() * 0.0;
       }},
      {"embeddings with padding and by frequency",
       [](auto& o) {
         const auto index = known(o);
         return at::embedding(o.table, index, 2).pow(2).sum() +
                at::embedding(o.table, index, -1, true).pow(3).sum();
       }},
  };
  return all;
}

TEST_CASE("rules: ops with subtle rules compute the unsharded result on uneven shards") {
  for (const auto& [name, family] : families()) {
    torch::manual_seed(11);
    auto net = std::make_shared<Net>();
    const Batch batch = {{"x", at::randn({7, 5}, at::kDouble)},
                         {"labels", at::tensor({3, -100, 0, 5, 5, -100, 2}, at::kLong)}};
    Given given;
    given.graph = capture(*net, batch, [&, family = family](const Batch& b) {
                    Operands o{b.at("x"), net->weight, at::matmul(b.at("x"), net->weight),
                               b.at("labels"), net->table};
                    const auto loss = family(o);
                    return Result{loss + o.y.sum() * 1e-3, {{"y", o.y}}};
                  }).graph;
    given.inputs = {batch.begin(), batch.end()};
    for (const auto& p : net->named_parameters()) given.inputs[p.key()] = p.value().detach();
    const auto expected = exec::evaluate(given.graph, given.inputs, {.seed = 3});
    for (uint64_t seed = 0; seed < 12; ++seed) {
      std::mt19937_64 random(seed);
      const auto plan = random_plan(given.graph, random, seed % 3 > 0);
      const auto wrong = compare(given, plan, expected);
      INFO(name << " seed " << seed << ": " << wrong << (wrong.empty() ? "" : plan::print(plan)));
      CHECK(wrong.empty());
    }
  }
}

}  // namespace
}  // namespace perigee::parity
