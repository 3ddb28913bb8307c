#include "capture/composites/experts.h"

#include <ATen/ATen.h>

#include "capture/composites/composite.h"

namespace perigee::experts {
namespace {

using at::Tensor;
using tracing::AutogradContext;
using tracing::typed_op;
using tracing::variable_list;

bool captured(const Tensor& tensor) { return tensor.device().type() == at::kPrivateUse1; }

// The row of [experts, g, places] that a slot of group g names; the number of rows where
// it names none.
Tensor rows_of(const Tensor& slot, int64_t experts, int64_t places, int64_t first) {
  const auto groups = slot.size(0);
  const auto expert = slot.div(places, "floor") - first;
  const auto group = at::arange(groups, slot.options()).view({groups, 1, 1});
  const auto row = (expert * groups + group) * places + slot.remainder(places);
  const auto none = (slot < 0).logical_or(expert < 0).logical_or(expert >= experts);
  return row.masked_fill(none, experts * groups * places).reshape({-1});
}

Tensor dispatch_op(const Tensor& source, const Tensor& slot, int64_t experts, int64_t places) {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, int64_t, int64_t)>(
      "perigee::dispatch");
  return op.call(source, slot, experts, places);
}

Tensor combine_op(const Tensor& queue, const Tensor& slot) {
  static const auto op = typed_op<Tensor(const Tensor&, const Tensor&)>("perigee::combine");
  return op.call(queue, slot);
}

struct Dispatch : torch::autograd::Function<Dispatch> {
  static Tensor forward(AutogradContext* context, const Tensor& source, const Tensor& slot,
                        int64_t experts, int64_t places) {
    context->save_for_backward({slot});
    at::AutoDispatchBelowADInplaceOrView below;
    return dispatch_op(source, slot, experts, places);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {combine(grads[0], context->get_saved_variables()[0]), {}, {}, {}};
  }
};

struct Combine : torch::autograd::Function<Combine> {
  static Tensor forward(AutogradContext* context, const Tensor& queue, const Tensor& slot) {
    context->save_for_backward({slot});
    context->saved_data["experts"] = queue.size(0);
    context->saved_data["places"] = queue.size(2);
    at::AutoDispatchBelowADInplaceOrView below;
    return combine_op(queue, slot);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {dispatch(grads[0], context->get_saved_variables()[0],
                     context->saved_data["experts"].toInt(), context->saved_data["places"].toInt()),
            {}};
  }
};

// [e, g, c, w] as [e, g * c, w]
Tensor flat(const Tensor& queue) { return queue.reshape({queue.size(0), -1, queue.size(3)}); }

// Returns a queue [e, g, c, w] with 0 in the places that are not taken.
Tensor taken_alone(const Tensor& queue, const Tensor& counts) {
  const auto place = at::arange(queue.size(2), counts.options());
  const auto unused = (place >= counts.t().unsqueeze(-1)).unsqueeze(-1);  // [e, g, c, 1]
  return queue.masked_fill(unused, 0);
}

struct GroupedMm : torch::autograd::Function<GroupedMm> {
  static Tensor forward(AutogradContext* context, const Tensor& self, const Tensor& weight,
                        const Tensor& counts) {
    static const auto op = typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&)>(
        "perigee::grouped_mm");
    context->save_for_backward({self, weight, counts});
    at::AutoDispatchBelowADInplaceOrView below;
    return op.call(self, weight, counts);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    static const auto outer = typed_op<Tensor(const Tensor&, const Tensor&, const Tensor&)>(
        "perigee::grouped_outer");
    const auto saved = context->get_saved_variables();
    const auto &self = saved[0], &weight = saved[1], &counts = saved[2];
    const auto d_self = grouped_mm(grads[0], weight.transpose(1, 2), counts);
    const auto d_weight = at::GradMode::is_enabled()
                              ? at::bmm(flat(self).transpose(1, 2), flat(grads[0]))
                              : outer.call(self, grads[0], counts);
    return {d_self, d_weight, {}};
  }
};

}  // namespace

namespace plain {

std::pair<Tensor, Tensor> slots(const Tensor& expert, int64_t experts, int64_t places) {
  const auto flat = expert.reshape({expert.size(0), -1});     // [g, t * k]
  const auto hot = at::one_hot(flat, experts);                // [g, t * k, e]
  const auto place = (at::cumsum(hot, 1) * hot).sum(-1) - 1;  // in its expert's queue
  const auto slot = at::where(place < places, flat * places + place, -1);
  return {slot.view(expert.sizes()), hot.sum(1).clamp_max(places)};
}

Tensor dispatch(const Tensor& source, const Tensor& slot, int64_t experts, int64_t places,
                int64_t first) {
  const auto width = source.size(3);
  const auto rows = rows_of(slot, experts, places, first);
  const auto groups = slot.size(0);
  // The last row takes the tokens without a place.
  return at::zeros({experts * groups * places + 1, width}, source.options())
      .index_add(0, rows, source.reshape({-1, width}))
      .narrow(0, 0, experts * groups * places)
      .view({experts, groups, places, width});
}

Tensor combine(const Tensor& queue, const Tensor& slot, int64_t first) {
  const auto width = queue.size(3);
  const auto rows = rows_of(slot, queue.size(0), queue.size(2), first);
  return at::cat({queue.reshape({-1, width}), at::zeros({1, width}, queue.options())})
      .index_select(0, rows)
      .view({slot.size(0), slot.size(1), slot.size(2), width});
}

Tensor grouped_mm(const Tensor& self, const Tensor& weight, const Tensor& counts) {
  const auto all = at::bmm(flat(self), weight);
  return taken_alone(all.view({self.size(0), self.size(1), self.size(2), -1}), counts);
}

Tensor grouped_outer(const Tensor& self, const Tensor& grad, const Tensor& counts) {
  return at::bmm(flat(taken_alone(self, counts)).transpose(1, 2), flat(taken_alone(grad, counts)));
}

}  // namespace plain

std::pair<Tensor, Tensor> slots(const Tensor& expert, int64_t experts, int64_t places,
                                bool dropless) {
  if (expert.dim() != 3 || expert.scalar_type() != at::kLong || experts < 1 || places < 1) {
    fail("experts", "slots takes experts [groups, tokens, choices] as int64, but got [{}] of {}",
         fmt::join(expert.sizes(), ", "), c10::toString(expert.scalar_type()));
  }
  if (captured(expert)) {
    static const auto op =
        typed_op<std::tuple<Tensor, Tensor>(const Tensor&, int64_t, int64_t, bool)>(
            "perigee::expert_slots");
    at::AutoDispatchBelowADInplaceOrView below;
    const auto [slot, counts] = op.call(expert, experts, places, dropless);
    return {slot, counts};
  }
  auto made = plain::slots(expert, experts, places);
  if (dropless && (made.first < 0).any().item<bool>()) {
    fail_run("experts", "every token needs a slot with its experts, but {} slots are too few",
             places);
  }
  return made;
}

Tensor dispatch(const Tensor& source, const Tensor& slot, int64_t experts, int64_t places) {
  return captured(source) ? Dispatch::apply(source, slot, experts, places)
                          : plain::dispatch(source, slot, experts, places);
}

Tensor combine(const Tensor& queue, const Tensor& slot) {
  return captured(queue) ? Combine::apply(queue, slot) : plain::combine(queue, slot);
}

Tensor grouped_mm(const Tensor& self, const Tensor& weight, const Tensor& counts) {
  return captured(self) ? GroupedMm::apply(self, weight, counts)
                        : plain::grouped_mm(self, weight, counts);
}

}  // namespace perigee::experts
