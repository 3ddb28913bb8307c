#include "compile/gradients/elementwise_step.h"

#include <string>
#include <utility>

#include "base/defect.h"

namespace perigee::compile {

graph::Arg attribute_of(const optim::Description& optimizer, const StepSpec& spec,
                        std::string_view name) {
  const double value = optim::value_of(optimizer, name, spec.options);
  switch (optimizer.find(name)->type) {
    case optim::AttributeType::flag:
      return value != 0;
    case optim::AttributeType::integer:
      return static_cast<int64_t>(value);
    case optim::AttributeType::real:
      break;
  }
  return value;
}

DraftInstruction elementwise_update(const optim::Description& optimizer, const StepSpec& spec,
                                    ElementwiseUpdate update, const StepValues& values) {
  const auto states = optim::flat_states(optimizer, spec.options);
  if (states.size() != update.states.size()) {
    fail_defect("compile", "{} keeps {} states, but got {}", optimizer.name, states.size(),
                update.states.size());
  }
  std::vector<std::pair<std::string, graph::Arg>> args{{"self", update.weights}};
  std::vector<ValueId> written{update.weights};
  for (size_t k = 0; k < states.size(); ++k) {
    args.emplace_back(states[k], update.states[k]);
    written.push_back(update.states[k]);
  }
  args.emplace_back("gradient", update.gradients);
  args.emplace_back("lr", update.learning_rate);
  args.emplace_back("step", values.step);
  args.emplace_back("scale", values.scale);
  for (const auto& attribute : optimizer.attributes) {
    args.emplace_back(attribute.name, attribute_of(optimizer, spec, attribute.name));
  }
  args.emplace_back("weight_decay", std::move(update.weight_decay));
  if (values.guarded) args.emplace_back("guarded", true);
  if (update.noise.defined()) args.emplace_back("noise", update.noise);
  return in_place(optimizer.op(), std::move(args), std::move(written));
}

}  // namespace perigee::compile
