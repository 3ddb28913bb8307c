#include "capture/exported/replay/convert.h"

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>

namespace perigee::exported {
namespace {

using c10::IValue;
using c10::TypeKind;

c10::TypePtr plain(c10::TypePtr type) {
  while (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  return type;
}

// Returns the value as an element of that kind.
std::optional<IValue> element(TypeKind kind, const IValue& value) {
  switch (kind) {
    case TypeKind::TensorType:
      if (value.isTensor()) return value;
      break;
    case TypeKind::IntType:
      if (value.isInt()) return value;
      if (value.isBool()) return int64_t{value.toBool()};
      break;
    case TypeKind::FloatType:
      if (value.isDouble()) return value;
      if (value.isInt()) return static_cast<double>(value.toInt());
      break;
    case TypeKind::BoolType:
      if (value.isBool()) return value;
      if (value.isInt()) return value.toInt() != 0;
      break;
    case TypeKind::NumberType:
      if (value.isScalar()) return value;
      break;
    case TypeKind::StringType:
      if (value.isString()) return value;
      break;
    case TypeKind::DeviceObjType:
      if (value.isDevice()) return value;
      break;
    default:
      break;
  }
  return std::nullopt;
}

template <class T, class F>
std::optional<IValue> list_of(const std::vector<IValue>& values, TypeKind kind, F get) {
  c10::List<T> list;
  list.reserve(values.size());
  for (const auto& value : values) {
    const auto fitting = element(kind, value);
    if (!fitting) return std::nullopt;
    list.push_back(get(*fitting));
  }
  return IValue(std::move(list));
}

}  // namespace

std::optional<IValue> converted(const c10::Argument& argument, IValue value) {
  const auto type = plain(argument.type());
  if (value.isNone()) {
    const bool fits = argument.type()->kind() == TypeKind::OptionalType ||
                      type->kind() == TypeKind::GeneratorType;
    return fits ? std::optional(value) : std::nullopt;
  }
  if (type->kind() != TypeKind::ListType) return element(type->kind(), value);
  return converted(argument, std::vector<IValue>(argument.N().value_or(1), value));
}

std::optional<IValue> converted(const c10::Argument& argument, const std::vector<IValue>& list) {
  const auto type = plain(argument.type())->cast<c10::ListType>();
  if (!type) return std::nullopt;
  const auto inner = type->getElementType();
  if (inner->kind() == TypeKind::OptionalType) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const auto& value : list) {
      if (!value.isNone() && !value.isTensor()) return std::nullopt;
      tensors.push_back(value.isNone() ? std::nullopt : std::optional(value.toTensor()));
    }
    return IValue(std::move(tensors));
  }
  switch (inner->kind()) {
    case TypeKind::TensorType:
      return list_of<at::Tensor>(list, inner->kind(), [](const auto& v) { return v.toTensor(); });
    case TypeKind::IntType:
      return list_of<int64_t>(list, inner->kind(), [](const auto& v) { return v.toInt(); });
    case TypeKind::FloatType:
      return list_of<double>(list, inner->kind(), [](const auto& v) { return v.toDouble(); });
    case TypeKind::BoolType:
      return list_of<bool>(list, inner->kind(), [](const auto& v) { return v.toBool(); });
    case TypeKind::NumberType:
      return list_of<at::Scalar>(list, inner->kind(), [](const auto& v) { return v.toScalar(); });
    default:
      return std::nullopt;
  }
}

}  // namespace perigee::exported
