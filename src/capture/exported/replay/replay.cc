#include "capture/exported/replay/replay.h"

#include <ATen/ATen.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>

#include <algorithm>

#include "base/fail.h"
#include "capture/capture.h"
#include "capture/exported/replay/convert.h"

namespace perigee::exported {
namespace {

using c10::IValue;

class Run {
 public:
  explicit Run(const Program& program) : program_(program), values_(program.slots) {}

  Replayed run(const std::vector<at::Tensor>& inputs, const BeforeCall& before) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      const auto& input = program_.inputs[i];
      values_[input.slot.index] = inputs[i];
      if (input.kind == Input::Kind::batch && inputs[i].dim() > 0) samples_ = inputs[i].size(0);
    }
    for (size_t i = 0; i < program_.calls.size(); ++i) {
      if (before) {
        auto call = program_.calls[i];
        before(i, call, values_);
        run(call);
      } else {
        run(program_.calls[i]);
      }
    }
    return {tensors(program_.results), tensors(program_.buffers)};
  }

 private:
  void run(const Call& call) {
    const auto scope = perigee::scope(call.scope);
    const at::AutoGradMode gradients(at::GradMode::is_enabled() && call.gradients);
    if (call.autocast || in_autocast_) autocast_.enter(call.autocast);
    in_autocast_ = call.autocast.has_value();
    if (call.function) {
      evaluate(call);
    } else {
      dispatch(call);
    }
  }

  IValue value_of(const Item& item) const {
    if (const auto* constant = std::get_if<IValue>(&item)) return *constant;
    if (const auto* size = std::get_if<SampleSize>(&item)) return size->multiple * samples_;
    return values_[std::get<Slot>(item).index];
  }

  std::vector<IValue> values_of(const Argument& argument) const {
    std::vector<IValue> values;
    for (const auto& item : argument.items) values.push_back(value_of(item));
    return values;
  }

  void evaluate(const Call& call) {
    std::vector<IValue> arguments;
    for (const auto& argument : call.arguments) arguments.push_back(value_of(argument.items.at(0)));
    auto result = call.function(arguments);
    for (const auto& slot : call.outputs) {
      if (slot.index >= 0) values_[slot.index] = result;
    }
  }

  void dispatch(const Call& call) {
    const auto op = overload_of(call);
    torch::jit::Stack stack;
    for (const auto& argument : op.schema().arguments()) stack.push_back(find(call, argument));
    if (op.schema().name() == "aten::view" && op.schema().overload_name().empty()) {
      make_viewable(stack);
    }
    op.callBoxed(stack);
    std::vector<at::Tensor> made;
    for (const auto& value : stack) {
      if (value.isTensorList()) {
        for (at::Tensor tensor : value.toTensorVector()) made.push_back(std::move(tensor));
      } else {
        made.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
      }
    }
    if (made.size() < call.outputs.size()) {
      fail("capture", "an exported model's ops have the results of its graph, but {} has {} of {}",
           call.target, made.size(), call.outputs.size());
    }
    for (size_t i = 0; i < call.outputs.size(); ++i) {
      if (call.outputs[i].index >= 0) values_[call.outputs[i].index] = made[i];
    }
  }

  // Results of LibTorch's kernels may have other strides than here, such as attention's, and the model
  // has views of them that these strides do not allow.
  static void make_viewable(torch::jit::Stack& stack) {
    const auto self = stack.at(0).toTensor();
    const auto sizes = at::infer_size(stack.at(1).toIntVector(), self.numel());
    if (!at::detail::computeStride(self.sizes(), self.strides(), sizes)) {
      stack[0] = self.contiguous();
    }
  }

  // Returns the argument that the call gives, or the default.
  IValue find(const Call& call, const c10::Argument& wanted) const {
    const auto given = std::ranges::find(call.arguments, wanted.name(), &Argument::name);
    if (given == call.arguments.end()) {
      if (wanted.default_value()) return *wanted.default_value();
      if (wanted.type()->kind() == c10::TypeKind::OptionalType) return {};
      fail("capture", "{} takes \"{}\", but the exported model gives none", call.target,
           wanted.name());
    }
    auto fitting = given->list ? converted(wanted, values_of(*given))
                               : converted(wanted, value_of(given->items.at(0)));
    if (fitting) return std::move(*fitting);
    fail("capture", "{} takes a {} as \"{}\", but the exported model gives another kind",
         call.target, wanted.type()->str(), wanted.name());
  }

  // Python takes a number as the second tensor of arithmetic: returns the overload for numbers,
  // which gives the type of the other operand.
  c10::OperatorHandle overload_of(const Call& call) const {
    const auto& schema = call.op->schema();
    const auto& arguments = schema.arguments();
    if (arguments.size() < 2 || call.arguments.size() < 2 ||
        arguments[1].type()->kind() != c10::TypeKind::TensorType || call.arguments[1].list ||
        !value_of(call.arguments[1].items.at(0)).isScalar()) {
      return *call.op;
    }
    const auto& overload = schema.overload_name();
    const auto number = overload.starts_with("Tensor") ? "Scalar" + overload.substr(6) : "Scalar";
    const auto found = c10::Dispatcher::singleton().findSchema({schema.name(), number});
    return found ? *found : *call.op;
  }

  std::vector<std::pair<std::string, at::Tensor>> tensors(const std::vector<Output>& outputs) {
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const auto& [name, slot] : outputs) {
      const auto& value = values_[slot.index];
      if (!value.isTensor()) {
        fail("capture", "an exported model's results are tensors, but {} is a {}", name,
             value.tagKind());
      }
      tensors.emplace_back(name, value.toTensor());
    }
    return tensors;
  }

  const Program& program_;
  std::vector<IValue> values_;
  AutocastState autocast_;
  bool in_autocast_ = false;
  int64_t samples_ = 0;
};

}  // namespace

Replayed replay(const Program& program, const std::vector<at::Tensor>& inputs,
                const BeforeCall& before) {
  return Run(program).run(inputs, before);
}

}  // namespace perigee::exported
