#include "lua/convert.h"

#include <cmath>
#include <vector>

#include "base/fail.h"
#include "lua/sandbox/sandbox.h"

namespace perigee::lua {
namespace {

constexpr size_t kDeepest = 100;

class Converter {
 public:
  Converter(lua_State* L, std::string_view what) : L_(L), path_(what) {}

  nlohmann::json convert(int index) {
    switch (lua_type(L_, index)) {
      case LUA_TNIL:
        return nullptr;
      case LUA_TBOOLEAN:
        return lua_toboolean(L_, index) != 0;
      case LUA_TNUMBER:
        return number(lua_tonumber(L_, index));
      case LUA_TSTRING: {
        size_t size;
        const char* text = lua_tolstring(L_, index, &size);
        return std::string(text, size);
      }
      case LUA_TTABLE:
        return table(index);
      default:
        fail("lua", "plain data is wanted, but {} is a {}{}", path_, luaL_typename(L_, index),
             lua_isfunction(L_, index) ? ": call it, as in m.fsdp {}" : "");
    }
  }

 private:
  nlohmann::json number(double value) {
    if (!std::isfinite(value)) fail("lua", "a finite number is wanted, but {} is {}", path_, value);
    if (value == std::floor(value) && std::abs(value) < 9e15) return static_cast<int64_t>(value);
    return value;
  }

  nlohmann::json table(int index) {
    push_real(L_, index);
    const int at = lua_gettop(L_);
    const void* identity = lua_topointer(L_, at);
    for (const void* open : open_) {
      if (open == identity) fail("lua", "plain data is wanted, but {} contains itself", path_);
    }
    if (open_.size() >= kDeepest)
      fail("lua", "tables may be nested {} deep, but {} is deeper", kDeepest, path_);
    if (!lua_checkstack(L_, 8)) fail("lua", "{} is nested too deeply", path_);
    open_.push_back(identity);
    size_t count = 0;
    const size_t length = lua_objlen(L_, at);
    bool array = true;
    lua_pushnil(L_);
    while (lua_next(L_, at) != 0) {
      lua_pop(L_, 1);
      ++count;
      array = array && lua_type(L_, -1) == LUA_TNUMBER;
    }
    array = array && count == length && count > 0;
    auto result = array ? nlohmann::json::array() : nlohmann::json::object();
    const auto outer = path_.size();
    if (array) {
      for (size_t i = 1; i <= length; ++i) {
        path_ += fmt::format("[{}]", i);
        lua_rawgeti(L_, at, static_cast<int>(i));
        result.push_back(convert(lua_gettop(L_)));
        lua_pop(L_, 1);
        path_.resize(outer);
      }
    } else {
      lua_pushnil(L_);
      while (lua_next(L_, at) != 0) {
        const int type = lua_type(L_, -2);
        if (type != LUA_TSTRING && type != LUA_TNUMBER) {
          fail("lua", "keys must be strings or numbers, but {} has a {} as a key", path_,
               lua_typename(L_, type));
        }
        const auto key = describe(L_, -2);
        path_ += fmt::format(".{}", key);
        result[key] = convert(lua_gettop(L_));
        lua_pop(L_, 1);
        path_.resize(outer);
      }
    }
    open_.pop_back();
    lua_settop(L_, at - 1);
    return result;
  }

  lua_State* L_;
  std::string path_;
  std::vector<const void*> open_;
};

}  // namespace

nlohmann::json to_json(lua_State* L, int index, std::string_view what) {
  if (index < 0 && index > LUA_REGISTRYINDEX) index = lua_gettop(L) + index + 1;
  const int top = lua_gettop(L);
  try {
    return Converter(L, what).convert(index);
  } catch (...) {
    lua_settop(L, top);
    throw;
  }
}

void push_json(lua_State* L, const nlohmann::json& value) {
  using Type = nlohmann::json::value_t;
  luaL_checkstack(L, 4, "a value is nested too deeply");
  switch (value.type()) {
    case Type::boolean:
      lua_pushboolean(L, value.get<bool>());
      break;
    case Type::number_integer:
    case Type::number_unsigned:
    case Type::number_float:
      lua_pushnumber(L, value.get<double>());
      break;
    case Type::string: {
      const auto& text = value.get_ref<const std::string&>();
      lua_pushlstring(L, text.data(), text.size());
      break;
    }
    case Type::array:
      lua_createtable(L, static_cast<int>(value.size()), 0);
      for (size_t i = 0; i < value.size(); ++i) {
        push_json(L, value[i]);
        lua_rawseti(L, -2, static_cast<int>(i + 1));
      }
      break;
    case Type::object:
      lua_createtable(L, 0, static_cast<int>(value.size()));
      for (const auto& [key, item] : value.items()) {
        lua_pushlstring(L, key.data(), key.size());
        push_json(L, item);
        lua_rawset(L, -3);
      }
      break;
    default:
      lua_pushnil(L);
  }
}

}  // namespace perigee::lua
