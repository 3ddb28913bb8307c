// Cross entropy and negative log likelihood: losses per label, then their sum over a denominator
// that depends on labels only and can be known for the whole step before the first backward. With
// ignored labels, the mean of microbatches' means is not the mean.
#include "capture/composites/losses.h"

#include <ATen/ATen.h>
#include <ATen/ops/cross_entropy_loss_native.h>
#include <torch/library.h>

#include <unordered_map>

#include "capture/composites/composite.h"

namespace perigee::tracing {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

at::Tensor one_hot(const at::Tensor& target, int64_t classes, const at::Tensor& like) {
  const auto all = at::arange(classes, target.options());
  return (target.unsqueeze(1) == all).to(like.scalar_type());
}

// The weight of each label: 0 for ignored ones.
at::Tensor label_weights(const at::Tensor& target, const at::Tensor& weight, int64_t ignore,
                         const at::Tensor& like) {
  const auto kept = (target != ignore);
  if (!weight.defined()) return kept.to(like.scalar_type());
  return weight.index_select(0, target.masked_fill(kept.logical_not(), 0).flatten())
             .view(target.sizes()) *
         kept;
}

struct CrossEntropy : torch::autograd::Function<CrossEntropy> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& logits,
                            const at::Tensor& target, const OptionalTensor& weight, int64_t ignore,
                            double smoothing) {
    static const auto op = typed_op<std::tuple<at::Tensor, at::Tensor>(
        const at::Tensor&, const at::Tensor&, const OptionalTensor&, int64_t, double)>(
        "perigee::cross_entropy");
    at::AutoDispatchBelowADInplaceOrView below;
    auto [losses, logsumexp] = op.call(logits, target, weight, ignore, smoothing);
    context->save_for_backward({logits, target, tensor_or_none(weight), logsumexp});
    context->saved_data["ignore"] = ignore;
    context->saved_data["smoothing"] = smoothing;
    return losses;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    static const auto op =
        typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, const OptionalTensor&, int64_t, double)>(
            "perigee::cross_entropy_backward");
    const auto saved = context->get_saved_variables();
    const auto &logits = saved[0], &target = saved[1], &weight = saved[2];
    const int64_t ignore = context->saved_data["ignore"].toInt();
    const double smoothing = context->saved_data["smoothing"].toDouble();
    if (at::GradMode::is_enabled()) {
      return {in_parts(grads[0], logits, target, weight, ignore, smoothing), {}, {}, {}, {}};
    }
    return {op.call(grads[0], logits, target, saved[3], optional(weight), ignore, smoothing),
            {},
            {},
            {},
            {}};
  }

  // Composed of ordinary ops, so that the derivative can be differentiated again.
  static at::Tensor in_parts(const at::Tensor& grad, const at::Tensor& logits,
                             const at::Tensor& target, const at::Tensor& weight, int64_t ignore,
                             double smoothing) {
    const int64_t classes = logits.size(1);
    const auto hot = one_hot(target, classes, logits);
    const auto kept = (target != ignore).to(logits.scalar_type()).unsqueeze(1);
    const auto all = weight.defined() ? weight.unsqueeze(0)
                                      : at::ones({1, classes}, logits.options());
    const auto pull = hot * all * (1 - smoothing) + all * (smoothing / double(classes));
    const auto push = logits.softmax(1) * pull.sum(1, true);
    return grad.unsqueeze(1) * kept * (push - pull);
  }
};

struct Nll : torch::autograd::Function<Nll> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& self,
                            const at::Tensor& target, const OptionalTensor& weight,
                            int64_t ignore) {
    static const auto op =
        typed_op<at::Tensor(const at::Tensor&, const at::Tensor&, const OptionalTensor&, int64_t)>(
            "perigee::nll");
    context->save_for_backward({self, target, tensor_or_none(weight)});
    context->saved_data["ignore"] = ignore;
    at::AutoDispatchBelowADInplaceOrView below;
    return op.call(self, target, weight, ignore);
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    static const auto op = typed_op<at::Tensor(const at::Tensor&, const at::Tensor&,
                                               const at::Tensor&, const OptionalTensor&, int64_t)>(
        "perigee::nll_backward");
    const auto saved = context->get_saved_variables();
    const int64_t ignore = context->saved_data["ignore"].toInt();
    if (at::GradMode::is_enabled()) {
      const auto shape = [&](const at::Tensor& x) { return x.unsqueeze(1); };
      auto all = at::arange(saved[0].size(1), saved[1].options());
      std::vector<int64_t> sizes(saved[0].dim(), 1);
      sizes[1] = -1;
      const auto hot = (shape(saved[1]) == all.view(sizes)).to(grads[0].scalar_type());
      const auto weights = label_weights(saved[1], saved[2], ignore, grads[0]);
      return {shape(grads[0] * weights).neg() * hot, {}, {}, {}};
    }
    return {op.call(grads[0], saved[0], saved[1], optional(saved[2]), ignore), {}, {}, {}};
  }
};

// sum(losses) / (the labels' weight, averaged over the step's microbatches).
at::Tensor reduce(const at::Tensor& losses, const at::Tensor& target, const at::Tensor& weight,
                  int64_t ignore, int64_t reduction) {
  if (reduction == at::Reduction::None) return losses;
  if (reduction == at::Reduction::Sum) return losses.sum();
  static const auto label_weight =
      typed_op<at::Tensor(const at::Tensor&, const OptionalTensor&, int64_t, at::ScalarType)>(
          "perigee::label_weight");
  static const auto step_average = typed_op<at::Tensor(const at::Tensor&)>("perigee::step_average");
  const auto type = losses.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor total;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    total = step_average.call(label_weight.call(target, optional(weight), ignore, type));
  }
  return (losses.sum() / total).to(losses.scalar_type());
}

void check_classes(const at::Tensor& weight, int64_t classes) {
  if (!weight.defined() || (weight.dim() == 1 && weight.size(0) == classes)) return;
  fail("capture", "class weights are [{}], one of each class, but got [{}]{}", classes,
       fmt::join(weight.sizes(), ", "), Session::current()->where());
}

at::Tensor nll(const at::Tensor& self, const at::Tensor& target, const OptionalTensor& weight,
               int64_t reduction, c10::SymInt ignore_index) {
  const int64_t ignore = ignore_index.expect_int();
  const auto classes = tensor_or_none(weight);
  const bool batched = self.dim() > 1;
  const auto scores = batched ? self : self.unsqueeze(0);
  const auto labels = batched ? target : target.reshape({1});
  check_classes(classes, scores.size(1));
  auto losses = Nll::apply(scores, labels, optional(classes), ignore);
  if (!batched && reduction == at::Reduction::None) losses = losses.squeeze(0);
  return reduce(losses, labels, classes, ignore, reduction);
}

at::Tensor cross_entropy(const at::Tensor& self, const at::Tensor& target,
                         const OptionalTensor& weight, int64_t reduction, c10::SymInt ignore_index,
                         double smoothing) {
  if (!(smoothing >= 0 && smoothing <= 1)) {
    fail("capture", "label smoothing lies in [0, 1], but got {}{}", smoothing,
         Session::current()->where());
  }
  if (at::isFloatingType(target.scalar_type())) {
    // Probabilities: ordinary ops, and a mean over all samples.
    return at::native::cross_entropy_loss_symint(self, target, weight, reduction, ignore_index,
                                                 smoothing);
  }
  const int64_t ignore = ignore_index.expect_int();
  const auto classes = tensor_or_none(weight);
  auto logits = self;  // [n, c, *] -> [n * .., c]
  if (self.dim() == 1) logits = self.unsqueeze(0);
  if (self.dim() > 2) logits = self.movedim(1, -1).reshape({-1, self.size(1)});
  const auto labels = target.reshape({-1});
  if (logits.size(0) != labels.size(0)) {
    fail("capture", "cross entropy takes logits [n, c, *] and labels [n, *], but got [{}] and [{}]",
         fmt::join(self.sizes(), ", "), fmt::join(target.sizes(), ", "));
  }
  check_classes(classes, logits.size(1));
  auto losses = CrossEntropy::apply(logits, labels, optional(classes), ignore, smoothing);
  if (reduction == at::Reduction::None) losses = losses.view(target.sizes());
  return reduce(losses, labels, classes, ignore, reduction);
}

void check_reduction(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto index = op.schema().argumentIndexWithName("reduction");
  if (!index) return;
  const auto& given = stack[stack.size() - op.schema().arguments().size() + *index];
  if (!given.isInt()) return;
  if (given.toInt() >= at::Reduction::None && given.toInt() <= at::Reduction::Sum) return;
  fail("capture", "reduction must be 0 (none), 1 (mean) or 2 (sum), but {} has {}{}",
       op.schema().name(), given.toInt(), Session::current()->where());
}

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) {
  m.impl("cross_entropy_loss", cross_entropy);
  m.impl("nll_loss", nll);
  m.impl("nll_loss2d", nll);
  m.impl("nll_loss_nd", nll);
}

}  // namespace

bool call_loss(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  static const auto& with_mean_inside = *new std::unordered_map<std::string, size_t>{
      {"aten::mse_loss", 2},
      {"aten::smooth_l1_loss", 2},
      {"aten::huber_loss", 2},
      {"aten::soft_margin_loss", 2},
      {"aten::binary_cross_entropy", 3},
      {"aten::binary_cross_entropy_with_logits", 4},
      {"aten::multi_margin_loss", 5},
      {"aten::multilabel_margin_loss", 2},
  };
  check_reduction(op, *stack);
  const auto found = with_mean_inside.find(op.schema().name());
  if (found == with_mean_inside.end()) return false;
  const size_t first = stack->size() - op.schema().arguments().size();
  auto& reduction = (*stack)[first + found->second];
  if (!reduction.isInt() || reduction.toInt() != at::Reduction::Mean) return false;
  reduction = int64_t{at::Reduction::None};
  op.callBoxed(stack);
  stack->back() = stack->back().toTensor().mean();
  return true;
}

}  // namespace perigee::tracing
