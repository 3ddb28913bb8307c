#include "tests/capture/support_draws.h"

#include <torch/library.h>

#include <stdexcept>

#include "exec/ops/random_op.h"
#include "graph/ops.h"
#include "tests/support/torch_test.h"

namespace perigee::test {
namespace {

constexpr auto kKey = c10::DispatchKey::TESTING_ONLY_GenericMode;

thread_local ReplayedDraws* current = nullptr;

at::Tensor dropout(const at::Tensor& self, double p, bool train) {
  return train && p > 0 ? self * current->take(self) : self;
}

at::Tensor& bernoulli(at::Tensor& self, double, std::optional<at::Generator>) {
  return self.copy_(current->take(self));
}

at::Tensor rand(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return current->take(at::empty(sizes, at::TensorOptions().dtype(dtype)));
}

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& self, double p,
                                                  std::optional<bool>) {
  const auto kept = current->take(self);
  return {self * kept * (1 / (1 - p)), kept.to(torch::kBool)};
}

// rrelu_with_noise with given draws; LibTorch's kernel draws its own.
struct Leaky : torch::autograd::Function<Leaky> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& self,
                            double lower, double upper) {
    const auto slopes = current->take(self);
    const auto noise = at::where(self <= 0, slopes, at::ones_like(slopes));
    context->save_for_backward({self, noise});
    context->saved_data["lower"] = lower;
    context->saved_data["upper"] = upper;
    return self * noise;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list grads) {
    const auto saved = context->get_saved_variables();
    return {at::rrelu_with_noise_backward(
                grads[0], saved[0], saved[1], context->saved_data["lower"].toDouble(),
                context->saved_data["upper"].toDouble(), /*training=*/true, /*is_result=*/false),
            {},
            {}};
  }
};

at::Tensor rrelu(const at::Tensor& self, const at::Scalar& lower, const at::Scalar& upper,
                 bool training, std::optional<at::Generator>) {
  if (!training) return at::leaky_relu(self, (lower.toDouble() + upper.toDouble()) / 2);
  return Leaky::apply(self, lower.toDouble(), upper.toDouble());
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericMode, m) {
  m.impl("dropout", dropout);
  m.impl("bernoulli_.float", bernoulli);
  m.impl("native_dropout", native_dropout);
  m.impl("rand", rand);
  m.impl("randn", rand);
  m.impl("rrelu", rrelu);
}

}  // namespace

ReplayedDraws::ReplayedDraws(const graph::Graph& graph, const exec::Draw& draw)
    : draw_(draw), key_(kKey) {
  for (const auto& node : graph.nodes) {
    if (node.phase != graph::Phase::forward || !graph::is_random(node.op)) continue;
    if (node.op == "perigee::attention" && node.get<double>("p", 0) == 0) continue;
    draws_.push_back(exec::op_of(graph, node));
  }
  current = this;
}

ReplayedDraws::~ReplayedDraws() { current = nullptr; }

at::Tensor ReplayedDraws::take(const at::Tensor& like) {
  if (all_taken()) throw std::runtime_error("eager draws more often than the graph");
  const auto& op = draws_[next_++];
  const exec::Arguments arguments(op);
  const bool attention = op.name == "perigee::attention";
  const exec::RandomArguments random(arguments, like.sizes().vec(),
                                     attention ? "random_key" : "key");
  const auto stream = random.stream(draw_);
  const auto block = random.block(draw_);
  if (op.name == "perigee::random") {
    auto out = at::empty(like.sizes(), like.options());
    exec::fill_random(out, exec::distribution_of(arguments), stream, block);
    return out;
  }
  auto mask = at::ones(like.sizes(), like.options());
  exec::dropout(mask, mask, arguments.number("p"), stream, block);
  return mask;
}

}  // namespace perigee::test
