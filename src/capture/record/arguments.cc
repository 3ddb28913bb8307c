// A call under its own name: arguments by their names in the schema, without those of no effect.
#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "base/fail.h"
#include "capture/device/dtype.h"
#include "capture/record/canonical.h"
#include "graph/ops.h"

namespace perigee::tracing {
namespace {

using c10::TypeKind;

// Returns whether the argument says only where and how a tensor is stored, which graphs leave out.
bool is_placement(const std::string& name) {
  constexpr std::array names = {"device",        "layout",       "pin_memory",
                                "memory_format", "non_blocking", "generator"};
  return std::ranges::find(names, name) != names.end();
}

bool is_dtype(const c10::Argument& argument) {
  auto type = argument.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type->kind() == TypeKind::ScalarTypeType;
}

bool is_default(const c10::Argument& argument, const c10::IValue& value) {
  const auto& otherwise = argument.default_value();
  if (!otherwise) return false;
  if (value.isScalar() && otherwise->isScalar() && !value.isBool()) {
    return value.toScalar().equal(otherwise->toScalar().toDouble());
  }
  return !value.isTensor() && !value.isTensorList() && value == *otherwise;
}

graph::Arg scalar(const c10::IValue& value) {
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool();
  return number_for(graph::DType::float32, value.toScalar());
}

graph::Arg to_arg(Session& session, const Recorded& call, const c10::Argument& argument,
                  const c10::IValue& value) {
  const auto one = [&](const at::Tensor& tensor) {
    return tensor.defined() ? operand(session, call, tensor) : graph::ValueId{};
  };
  if (value.isNone()) return std::monostate{};
  if (value.isTensor()) {
    return value.toTensor().defined() ? graph::Arg(one(value.toTensor())) : std::monostate{};
  }
  if (value.isTensorList()) {
    std::vector<graph::ValueId> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(one(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    std::vector<graph::ValueId> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList().vec()) {
      list.push_back(tensor ? one(*tensor) : graph::ValueId{});
    }
    return list;
  }
  if (is_dtype(argument)) return dtype_of(value.toScalarType());
  if (value.isScalar()) return scalar(value);
  if (value.isString()) return std::string(value.toStringRef());
  if (value.isIntList()) return value.toIntVector();
  if (value.isDoubleList()) return value.toDoubleVector();
  if (value.isBoolList()) {
    const auto list = value.toBoolList();
    return std::vector<bool>(list.begin(), list.end());
  }
  fail("capture", "arguments are tensors, numbers, lists, strings and types, but {} has {} = {}{}",
       call.op.name, argument.name(), value.tagKind(), session.where());
}

// Negative dims count from the end of the operand, or of the result for the backward of a view.
void wrap_dims(const Recorded& call, const std::string& name, graph::Arg& arg) {
  if (name != "dim" && name != "dims" && name != "dim0" && name != "dim1") return;
  at::Tensor of;
  for (size_t i = 0; i < call.values.size() && !of.defined(); ++i) {
    if (call.values[i].isTensorList()) of = call.values[i].toTensorVector().at(0);
    if (call.values[i].isTensor()) of = call.values.tensor(i);
  }
  // A list that is joined may have tensors [0], of another rank than the others.
  const bool of_result = call.op.name == "aten::stack" || call.op.name == "aten::cat" ||
                         !graph::size_argument(call.op.name).empty() || !of.defined();
  const int64_t rank = of_result ? call.results[0].dim() : of.dim();
  const auto wrap = [&](int64_t& dim) { dim = dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim; };
  if (auto* dim = std::get_if<int64_t>(&arg)) wrap(*dim);
  if (auto* dims = std::get_if<std::vector<int64_t>>(&arg)) std::ranges::for_each(*dims, wrap);
}

// x * 2.0 reaches the device as mul.Tensor with a wrapped number: write it as mul.Scalar. Returns
// the overload's name, or "".
std::string scalar_overload(const Recorded& call) {
  const auto& name = call.op.name;
  const auto dot = name.rfind(".Tensor");
  if (dot == name.npos || call.values.size() < 2) return "";
  const auto first = call.values.tensor(0), second = call.values.tensor(1);
  if (!first.defined() || first.is_cpu() || !second.defined() || !second.is_cpu() ||
      second.is_complex() || !second.unsafeGetTensorImpl()->is_wrapped_number()) {
    return "";
  }
  const auto overload = "Scalar" + name.substr(dot + 7);  // Tensor_mode: Scalar_mode
  const auto op = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), overload});
  return op && op->schema().arguments().size() == call.values.size()
             ? name.substr(0, dot + 1) + overload
             : "";
}

}  // namespace

std::vector<graph::ValueId> emit_call(Session& session, const Recorded& call) {
  auto overload = scalar_overload(call);
  const auto& name = call.op.name;
  const auto sizes = graph::size_argument(call.op.name);
  Arguments arguments;
  bool has_dtype = false, has_operand = false;
  for (size_t i = 0; i < call.values.size(); ++i) {
    const auto& argument = call.values.schema().arguments()[i];
    const auto& value = call.values[i];
    if (is_placement(argument.name()) || argument.name() == sizes || is_default(argument, value)) {
      continue;
    }
    graph::Arg arg;
    if (i == 1 && value.isComplexDouble() && name.ends_with(".Scalar")) {
      // Numbers in a graph are real: the other overload takes a tensor.
      overload = name.substr(0, name.size() - 6) + "Tensor";
      arg = complex_number(session, type_of(call.results[0]).dtype, value.toComplexDouble());
    } else {
      arg = i == 1 && !overload.empty() ? scalar(c10::IValue(value.toTensor().item()))
                                        : to_arg(session, call, argument, value);
    }
    wrap_dims(call, argument.name(), arg);
    has_dtype = has_dtype || argument.name() == "dtype";
    has_operand = has_operand || arg.index() == 1 || arg.index() == 2;
    arguments.emplace_back(argument.name(), std::move(arg));
  }
  std::vector<std::optional<graph::TensorType>> types;
  for (const auto& result : call.results) {
    types.push_back(result.defined() ? std::optional(type_of(result)) : std::nullopt);
  }
  // A factory's dtype must not depend on LibTorch's default dtype.
  if (!has_operand && !has_dtype && call.values.schema().argumentIndexWithName("dtype")) {
    arguments.emplace_back("dtype", types[0]->dtype);
  }
  return session.emit(overload.empty() ? call.op.name : overload, std::move(arguments), types);
}

}  // namespace perigee::tracing
