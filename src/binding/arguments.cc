#include "binding/arguments.h"

#include <ATen/core/jit_type.h>

#include <cmath>

#include "base/fail.h"
#include "capture/device/dtype.h"

namespace perigee::binding {
namespace {

using c10::IValue;
using c10::TypeKind;

bool is_whole(lua_State* L, int index) {
  return lua_type(L, index) == LUA_TNUMBER &&
         lua_tonumber(L, index) == std::floor(lua_tonumber(L, index)) &&
         std::abs(lua_tonumber(L, index)) <= 0x1p53;
}

std::optional<IValue> read_dtype(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) return std::nullopt;
  const auto type = graph::dtype_of(lua_tostring(L, index));
  if (!type) return std::nullopt;
  return IValue(static_cast<int64_t>(tracing::scalar_type(*type)));
}

std::optional<IValue> read_memory_format(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) return std::nullopt;
  const std::string_view name = lua_tostring(L, index);
  if (name == "contiguous_format") return IValue(int64_t(at::MemoryFormat::Contiguous));
  if (name == "preserve_format") return IValue(int64_t(at::MemoryFormat::Preserve));
  if (name == "channels_last") return IValue(int64_t(at::MemoryFormat::ChannelsLast));
  return std::nullopt;
}

class Reader {
 public:
  Reader(Context& context, lua_State* L) : context_(context), L_(L) {}

  std::optional<IValue> read(int index, const c10::Type& type, std::optional<int32_t> size) {
    switch (type.kind()) {
      case TypeKind::OptionalType:
        if (lua_isnoneornil(L_, index)) return IValue();
        return read(index, *type.castRaw<c10::OptionalType>()->getElementType(), size);
      case TypeKind::TensorType:
        if (const auto* tensor = context_.tensors.get(L_, index)) return IValue(*tensor);
        return std::nullopt;
      case TypeKind::ScalarTypeType:
        return read_dtype(L_, index);
      case TypeKind::MemoryFormatType:
        return read_memory_format(L_, index);
      case TypeKind::StringType:
        if (lua_type(L_, index) != LUA_TSTRING) return std::nullopt;
        return IValue(std::string(lua_tostring(L_, index)));
      case TypeKind::BoolType:
        if (lua_type(L_, index) != LUA_TBOOLEAN) return std::nullopt;
        return IValue(lua_toboolean(L_, index) != 0);
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        if (!is_whole(L_, index)) return std::nullopt;
        return IValue(static_cast<int64_t>(lua_tonumber(L_, index)));
      case TypeKind::FloatType:
        if (lua_type(L_, index) != LUA_TNUMBER) return std::nullopt;
        return IValue(static_cast<double>(lua_tonumber(L_, index)));
      case TypeKind::NumberType:
        return number(index);
      case TypeKind::ListType:
        return list(index, *type.castRaw<c10::ListType>()->getElementType(), size);
      default:  // devices, generators, names of dims: models cannot set them
        return std::nullopt;
    }
  }

 private:
  std::optional<IValue> number(int index) {
    if (lua_type(L_, index) == LUA_TBOOLEAN) return IValue(lua_toboolean(L_, index) != 0);
    if (lua_type(L_, index) != LUA_TNUMBER) return std::nullopt;
    const double value = lua_tonumber(L_, index);
    return is_whole(L_, index) ? IValue(static_cast<int64_t>(value)) : IValue(value);
  }

  std::optional<IValue> list(int index, const c10::Type& element, std::optional<int32_t> size) {
    switch (element.kind()) {
      case TypeKind::IntType:
      case TypeKind::SymIntType:
        return items<int64_t>(index, element, size,
                              [](const IValue& v) -> int64_t { return v.toInt(); });
      case TypeKind::FloatType:
        return items<double>(index, element, size,
                             [](const IValue& v) -> double { return v.toDouble(); });
      case TypeKind::BoolType:
        return items<bool>(index, element, size,
                           [](const IValue& v) -> bool { return v.toBool(); });
      case TypeKind::TensorType:
        return items<at::Tensor>(index, element, std::nullopt,
                                 [](const IValue& v) { return v.toTensor(); });
      case TypeKind::OptionalType:
        return items<std::optional<at::Tensor>>(index, element, std::nullopt, [](const IValue& v) {
          return v.isNone() ? std::nullopt : std::optional(v.toTensor());
        });
      default:
        return std::nullopt;
    }
  }

  template <class T, class Convert>
  std::optional<IValue> items(int index, const c10::Type& element, std::optional<int32_t> size,
                              Convert convert) {
    c10::List<T> list;
    if (size && !lua_istable(L_, index)) {
      const auto item = read(index, element, std::nullopt);
      if (!item) return std::nullopt;
      for (int32_t i = 0; i < *size; ++i) list.push_back(convert(*item));
      return IValue(list);
    }
    if (!lua_istable(L_, index)) return std::nullopt;
    check_list(L_, index);
    const auto count = static_cast<int>(lua_objlen(L_, index));
    for (int i = 1; i <= count; ++i) {
      lua_rawgeti(L_, index, i);
      if (element.kind() == TypeKind::OptionalType && lua_type(L_, -1) == LUA_TBOOLEAN &&
          !lua_toboolean(L_, -1)) {
        lua_pop(L_, 1);
        lua_pushnil(L_);
      }
      const auto item = read(lua_gettop(L_), element, std::nullopt);
      lua_pop(L_, 1);
      if (!item) return std::nullopt;
      list.push_back(convert(*item));
    }
    return IValue(list);
  }

  Context& context_;
  lua_State* L_;
};

std::string describe_type(const c10::Type& type, std::optional<int32_t> size, bool plural) {
  const auto name = [&](const char* one, const char* many) { return plural ? many : one; };
  switch (type.kind()) {
    case TypeKind::OptionalType: {
      const auto& inner = *type.castRaw<c10::OptionalType>()->getElementType();
      return describe_type(inner, size, plural) + (plural ? " or false" : " or nil");
    }
    case TypeKind::TensorType:
      return name("a tensor", "tensors");
    case TypeKind::ScalarTypeType:
      return "a dtype such as \"float32\"";
    case TypeKind::MemoryFormatType:
      return "a memory format such as \"channels_last\"";
    case TypeKind::StringType:
      return name("a string", "strings");
    case TypeKind::BoolType:
      return name("true or false", "booleans");
    case TypeKind::IntType:
    case TypeKind::SymIntType:
      return name("an integer", "integers");
    case TypeKind::FloatType:
    case TypeKind::NumberType:
      return name("a number", "numbers");
    case TypeKind::ListType: {
      const auto& element = *type.castRaw<c10::ListType>()->getElementType();
      const auto list = "a list of " + describe_type(element, std::nullopt, true);
      return size ? fmt::format("{} or {}", describe_type(element, std::nullopt, false), list)
                  : list;
    }
    default:
      return "left out";
  }
}

}  // namespace

std::optional<IValue> read_argument(Context& context, lua_State* L, int index,
                                    const c10::Argument& argument) {
  return Reader(context, L).read(index, *argument.real_type(), argument.N());
}

void check_list(lua_State* L, int index) {
  const auto count = static_cast<lua_Number>(lua_objlen(L, index));
  lua_pushnil(L);
  while (lua_next(L, index)) {
    lua_pop(L, 1);
    const int key = lua_gettop(L);
    if (is_whole(L, key) && lua_tonumber(L, key) >= 1 && lua_tonumber(L, key) <= count) continue;
    fail("model",
         "a list must have the keys 1, 2, ... alone, but got {}: named arguments are a table of "
         "their own, after the list",
         found(Context::of(L), L, key));
  }
}

bool is_open_list(const c10::Argument& argument) {
  const auto& type = *argument.real_type();
  if (type.kind() != TypeKind::ListType || argument.N()) return false;
  const auto element = type.castRaw<c10::ListType>()->getElementType()->kind();
  return element == TypeKind::IntType || element == TypeKind::SymIntType;
}

std::string expected(const c10::Argument& argument) {
  return describe_type(*argument.real_type(), argument.N(), false);
}

std::string found(Context& context, lua_State* L, int index) {
  if (const auto* tensor = context.tensors.get(L, index)) return describe(*tensor);
  switch (lua_type(L, index)) {
    case LUA_TNONE:
      return "nothing";
    case LUA_TNUMBER:
      return fmt::format("{}", lua_tonumber(L, index));
    case LUA_TSTRING:
      return fmt::format("\"{}\"", lua_tostring(L, index));
    case LUA_TBOOLEAN:
      return lua_toboolean(L, index) ? "true" : "false";
    case LUA_TTABLE: {
      std::string text;
      for (int i = 1; i <= std::min<int>(8, static_cast<int>(lua_objlen(L, index))); ++i) {
        lua_rawgeti(L, index, i);
        text += (i > 1 ? ", " : "") + found(context, L, lua_gettop(L));
        lua_pop(L, 1);
      }
      return "{" + text + "}";
    }
    case LUA_TUSERDATA:
      return "a module";
    default:
      return luaL_typename(L, index);
  }
}

void push_result(Context& context, lua_State* L, const IValue& value) {
  if (value.isTensor()) return context.tensors.push(L, value.toTensor());
  if (value.isBool()) return lua_pushboolean(L, value.toBool());
  if (value.isInt()) return lua_pushnumber(L, static_cast<lua_Number>(value.toInt()));
  if (value.isDouble()) return lua_pushnumber(L, value.toDouble());
  if (value.isString()) return lua_pushstring(L, value.toStringRef().c_str());
  if (value.isNone()) return lua_pushnil(L);
  if (value.isList()) {
    const auto list = value.toList();
    lua_createtable(L, static_cast<int>(list.size()), 0);
    for (size_t i = 0; i < list.size(); ++i) {
      push_result(context, L, list.get(i));
      lua_rawseti(L, -2, static_cast<int>(i) + 1);
    }
    return;
  }
  fail("model", "an op's results are tensors, numbers and lists of them, but got a {}",
       value.tagKind());
}

}  // namespace perigee::binding
