#include "exec/ops/dispatcher.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>

#include <memory>

#include "base/fail.h"
#include "capture/record/data_schema.h"
#include "exec/tensor.h"
#include "graph/ops.h"

namespace perigee::exec {
namespace {

using c10::IValue;
using c10::TypeKind;
using graph::Arg;
using graph::ValueId;

// The operands of one argument: a tensor at stack[slot], or a list of tensors at stack[slot] (-1:
// no tensor).
struct TensorSlot {
  size_t slot;
  int operand;
};
struct ListSlot {
  size_t slot;
  std::vector<int> operands;
  bool optional;
};

struct BoxedCall {
  c10::OperatorHandle handle;
  std::string name;
  std::vector<IValue> constants;  // one per argument of the schema; None for tensors
  std::vector<TensorSlot> tensors;
  std::vector<ListSlot> lists;
  torch::jit::Stack stack;

  void operator()(std::span<const at::Tensor> operands, std::span<at::Tensor> outputs) {
    stack.assign(constants.begin(), constants.end());
    for (const auto& [slot, operand] : tensors) stack[slot] = operands[operand];
    for (const auto& list : lists) fill(list, operands);
    handle.callBoxed(&stack);
    size_t next = 0;
    for (auto& value : stack) {
      if (value.isTensor()) {
        put(outputs, next, std::move(value).toTensor());
      } else if (value.isTensorList()) {
        for (auto& tensor : value.toTensorVector()) put(outputs, next, std::move(tensor));
      } else if (value.isNone()) {
        ++next;
      } else {
        fail("exec", "results of {} must be tensors, but got {}", name, value.tagKind());
      }
    }
    stack.clear();
    if (next < outputs.size()) {
      fail("exec", "{} must have {} results, but got {}", name, outputs.size(), next);
    }
  }

 private:
  void put(std::span<at::Tensor> outputs, size_t& next, at::Tensor tensor) {
    if (next < outputs.size()) outputs[next] = std::move(tensor);
    ++next;
  }

  void fill(const ListSlot& list, std::span<const at::Tensor> operands) {
    if (list.optional) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (int operand : list.operands) {
        tensors.push_back(operand < 0 ? std::nullopt : std::optional(operands[operand]));
      }
      stack[list.slot] = std::move(tensors);
    } else {
      c10::List<at::Tensor> tensors;
      tensors.reserve(list.operands.size());
      for (int operand : list.operands) {
        tensors.push_back(operand < 0 ? at::Tensor() : operands[operand]);
      }
      stack[list.slot] = std::move(tensors);
    }
  }
};

c10::TypePtr without_optional(c10::TypePtr type) {
  while (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// Returns the constant converted to the schema's type: an int becomes a float where the schema
// requires one, and so on.
IValue to_ivalue(const Arg& arg, const c10::TypePtr& type) {
  const auto kind = type->kind();
  const auto element = [&] {
    auto list = type->cast<c10::ListType>();
    return list ? without_optional(list->getElementType())->kind() : kind;
  };
  return std::visit(Overloaded{
                        [](std::monostate) { return IValue(); },
                        [](ValueId) -> IValue { return {}; },
                        [](const std::vector<ValueId>&) -> IValue { return {}; },
                        [&](bool v) {
                          if (kind == TypeKind::IntType || kind == TypeKind::SymIntType)
                            return IValue(int64_t{v});
                          if (kind == TypeKind::FloatType) return IValue(v ? 1.0 : 0.0);
                          return IValue(v);
                        },
                        [&](int64_t v) {
                          if (kind == TypeKind::FloatType) return IValue(static_cast<double>(v));
                          if (kind == TypeKind::BoolType) return IValue(v != 0);
                          if (kind == TypeKind::ListType) return IValue(std::vector<int64_t>{v});
                          return IValue(v);
                        },
                        [](double v) { return IValue(v); },
                        [](const std::string& v) { return IValue(v); },
                        [](graph::DType v) { return IValue(static_cast<int64_t>(scalar_type(v))); },
                        [&](const std::vector<int64_t>& v) {
                          if (element() == TypeKind::FloatType) {
                            return IValue(std::vector<double>(v.begin(), v.end()));
                          }
                          if (element() == TypeKind::BoolType) {
                            c10::List<bool> list;
                            for (auto x : v) list.push_back(x != 0);
                            return IValue(list);
                          }
                          return IValue(v);
                        },
                        [](const std::vector<double>& v) { return IValue(v); },
                        [](const std::vector<bool>& v) {
                          c10::List<bool> list;
                          for (bool x : v) list.push_back(x);
                          return IValue(list);
                        },
                    },
                    arg);
}

// Graphs, plans and replacements are data: an op that they name computes results from operands and
// constants. Throws Error for an op that writes to an operand of its caller (out=) or takes a text
// other than the option of an algorithm, such as the path of a file (aten::from_file). Replacements
// are checked earlier, too, without schemas (plan/data_ops.h).
void check_is_data(const Op& op, const c10::FunctionSchema& schema) {
  const auto* argument = tracing::find_no_data(schema);
  if (!argument) return;
  if (argument->is_out()) {
    fail("exec", "ops return their results, but {} writes to \"{}\": name its overload without out",
         op.name, argument->name());
  }
  fail("exec", "ops compute from tensors and numbers, but {} takes \"{}\"", op.name,
       argument->name());
}

bool is_placement(const std::string& name) {
  return name == "device" || name == "layout" || name == "pin_memory" || name == "generator";
}

}  // namespace

Kernel dispatcher_kernel(const Op& op) { return dispatcher_kernel_on(at::kCPU, op); }

Kernel dispatcher_kernel_on(at::Device place, const Op& op) {
  const auto dot = op.name.find('.');
  const c10::OperatorName name(op.name.substr(0, dot),
                               dot == std::string::npos ? "" : op.name.substr(dot + 1));
  const auto handle = c10::Dispatcher::singleton().findSchema(name);
  if (!handle) {
    fail("exec", "ops must be known to LibTorch or to Perigee, but got \"{}\"", op.name);
  }
  check_is_data(op, handle->schema());
  auto call = std::make_shared<BoxedCall>(BoxedCall{.handle = *handle, .name = op.name});
  const Arguments arguments(op);
  const auto& schema = handle->schema().arguments();
  for (const auto& [key, arg] : op.args) {
    if (key == "way") continue;  // of Perigee's products on a CPU (kernels/product.h)
    const bool known = std::any_of(schema.begin(), schema.end(),
                                   [&](const auto& argument) { return argument.name() == key; });
    if (!known) fail("exec", "{} has no argument \"{}\"", op.name, key);
  }
  for (size_t slot = 0; slot < schema.size(); ++slot) {
    const auto& argument = schema[slot];
    IValue constant;
    if (const auto* arg = arguments.find(argument.name())) {
      const auto type = without_optional(argument.real_type());
      if (const auto* v = std::get_if<ValueId>(arg)) {
        if (v->defined()) call->tensors.push_back({slot, v->index});
      } else if (std::get_if<std::vector<ValueId>>(arg)) {
        const auto list = type->cast<c10::ListType>();
        const bool optional = list && list->getElementType()->kind() == TypeKind::OptionalType;
        call->lists.push_back({slot, arguments.operands(argument.name()), optional});
      } else {
        constant = to_ivalue(*arg, type);
      }
    } else if (argument.name() == graph::size_argument(op.name)) {
      constant = arguments.type().shape;
    } else if (argument.name() == "device") {
      constant = place;
    } else if (argument.default_value()) {
      constant = *argument.default_value();
    } else if (argument.real_type()->kind() != TypeKind::OptionalType &&
               !is_placement(argument.name())) {
      fail("exec", "{} needs the argument \"{}\", but got none", op.name, argument.name());
    }
    call->constants.push_back(std::move(constant));
  }
  call->stack.reserve(schema.size() + 8);
  return [call](std::span<const at::Tensor> operands, std::span<at::Tensor> outputs, const Draw&) {
    (*call)(operands, outputs);
  };
}

}  // namespace perigee::exec
