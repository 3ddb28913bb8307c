// The section "step": the gradients' norm, clipping, the optimizer.
#include <map>

#include "base/error.h"
#include "compile/passes.h"

namespace perigee::compile {

using graph::DType;
using graph::TensorType;

namespace {

const TensorType kScalar{DType::float64, {}};

using Args = std::vector<std::pair<std::string, graph::Arg>>;

ValueId scalar(Draft& draft, Binding::Kind kind, const std::string& name) {
  if (const auto* known = draft.program.find(kind, name)) return known->value;
  Binding binding;
  binding.kind = kind;
  binding.name = name;
  binding.value = draft.add(kScalar, name, {Home::Kind::persistent});
  draft.bind(binding);
  return binding.value;
}

// Appends the sum of squares of all gradients, in the order of the graph's inputs; gradients that
// are sharded add up over the axes they are sharded on.
ValueId squared_norm(Draft& draft, const Gradients& gradients, std::vector<DraftInstruction>& out) {
  std::map<std::string, std::vector<ValueId>> by_axes;
  for (const auto& parameter : gradients.parameters) {
    by_axes[parameter.shard_axes].push_back(parameter.value);
  }
  ValueId total;
  for (auto& [axes, values] : by_axes) {
    const Home home = axes.empty() ? Home{} : Home{Home::Kind::communication, draft.stream(axes)};
    const ValueId part = draft.add(kScalar, "squared_norm", home);
    out.push_back(plain(draft, "perigee::squared_norm", {{"tensors", std::move(values)}}, {part}));
    if (!axes.empty()) out.push_back(all_reduce(draft, part, axes, "sum"));
    if (!total.defined()) {
      total = part;
    } else {
      out.push_back(in_place("perigee::accumulate_", {{"self", total}, {"other", part}}, {total}));
    }
  }
  return total;
}

}  // namespace

void make_step_section(Draft& draft, const Source& source, const Gradients& gradients,
                       double factor) {
  if (gradients.parameters.empty()) return;
  const auto& spec = source.spec;
  DraftSection section{"step", false, {}};
  auto& out = section.instructions;
  const ValueId squared = squared_norm(draft, gradients, out);
  const ValueId norm = scalar(draft, Binding::Kind::result, "grad_norm");
  const ValueId scale = draft.add(kScalar, "scale");
  out.push_back(plain(
      draft, "perigee::clip_scale",
      {{"squared_norm", squared}, {"max_norm", spec.clip_norm.value_or(0.0)}, {"factor", factor}},
      {norm, scale}));
  for (const auto& bucket : gradients.buckets) {
    if (spec.optimizer == "none") {
      out.push_back(in_place("perigee::scale_", {{"self", bucket.gradients}, {"scale", scale}},
                             {bucket.gradients}));
      continue;
    }
    const double decay =
        bucket.group == 0 ? spec.weight_decay
                          : spec.groups[bucket.group - 1].weight_decay.value_or(spec.weight_decay);
    Args args{{"self", bucket.weights}};
    std::vector<ValueId> outputs{bucket.weights};
    const bool adam = spec.optimizer != "sgd";
    if (bucket.first_state.defined()) {
      args.emplace_back(adam ? "exp_avg" : "momentum_buffer", bucket.first_state);
      outputs.push_back(bucket.first_state);
    }
    if (bucket.second_state.defined()) {
      args.emplace_back("exp_avg_sq", bucket.second_state);
      outputs.push_back(bucket.second_state);
    }
    args.emplace_back("gradient", bucket.gradients);
    args.emplace_back("lr",
                      scalar(draft, Binding::Kind::scalar, "lr." + std::to_string(bucket.group)));
    args.emplace_back("step", scalar(draft, Binding::Kind::scalar, "step"));
    args.emplace_back("scale", scale);
    if (adam) {
      args.emplace_back("beta1", spec.beta1);
      args.emplace_back("beta2", spec.beta2);
      args.emplace_back("eps", spec.eps);
    } else {
      args.emplace_back("momentum", spec.momentum);
      args.emplace_back("dampening", spec.dampening);
      args.emplace_back("nesterov", spec.nesterov);
    }
    args.emplace_back("weight_decay", decay);
    out.push_back(
        in_place("perigee::" + spec.optimizer + "_", std::move(args), std::move(outputs)));
  }
  draft.sections.push_back(std::move(section));
}

}  // namespace perigee::compile
