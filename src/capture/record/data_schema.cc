#include "capture/record/data_schema.h"

#include <ATen/core/jit_type.h>

#include "plan/data_ops.h"

namespace perigee::tracing {

const c10::Argument* find_no_data(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.is_out()) return &argument;
    auto type = argument.type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    const bool is_text = type->kind() == c10::TypeKind::StringType &&
                         !plan::is_option(argument.name());
    if (is_text || type->kind() == c10::TypeKind::StorageType ||
        type->kind() == c10::TypeKind::StreamObjType) {
      return &argument;
    }
  }
  return nullptr;
}

}  // namespace perigee::tracing
