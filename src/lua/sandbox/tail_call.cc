#include "lua/sandbox/tail_call.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace perigee::lua {
namespace {

// LuaJIT's view of a function's instructions, as jit.util gives it.
class Instructions {
 public:
  // Of the function on top of the stack.
  explicit Instructions(lua_State* L) : L_(L), function_(lua_gettop(L)) {
    open_util();
    count_ = static_cast<int>(field(0, "bytecodes"));
  }
  ~Instructions() { lua_settop(L_, function_); }
  Instructions(const Instructions&) = delete;

  int count() const { return count_; }  // 0: not a Lua function, or nothing is known
  int line(int at) { return static_cast<int>(field(at, "currentline")); }
  uint32_t code(int at) {
    if (!util("funcbc", at, 1)) return 0;
    const auto code = static_cast<uint32_t>(static_cast<int64_t>(lua_tonumber(L_, -1)));
    lua_pop(L_, 1);
    return code;
  }

 private:
  // Pushes jit.util, or nil.
  void open_util() {
    lua_getfield(L_, LUA_REGISTRYINDEX, "perigee.jit.util");
    if (!lua_isnil(L_, -1)) return;
    lua_pop(L_, 1);
    lua_pushcfunction(L_, luaopen_jit);
    lua_pushliteral(L_, LUA_JITLIBNAME);
    lua_call(L_, 1, 0);
    luaJIT_setmode(L_, 0, LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);  // opening it turns it on
    lua_getfield(L_, LUA_REGISTRYINDEX, "_PRELOAD");
    if (lua_istable(L_, -1)) lua_getfield(L_, -1, "jit.util");
    if (lua_isfunction(L_, -1)) {
      lua_pushliteral(L_, "jit.util");
      lua_call(L_, 1, 1);
    } else {
      lua_pushnil(L_);
    }
    lua_pushvalue(L_, -1);
    lua_setfield(L_, LUA_REGISTRYINDEX, "perigee.jit.util");
    lua_replace(L_, function_ + 1);
    lua_settop(L_, function_ + 1);
  }

  // Calls jit.util.NAME(function, at); leaves its first result, or returns false.
  bool util(const char* name, int at, int results) {
    if (!lua_istable(L_, function_ + 1)) return false;
    lua_getfield(L_, function_ + 1, name);
    lua_pushvalue(L_, function_);
    lua_pushinteger(L_, at);
    lua_call(L_, 2, results);
    return true;
  }

  lua_Number field(int at, const char* name) {
    if (!util("funcinfo", at, 1)) return 0;
    lua_getfield(L_, -1, name);
    const auto value = lua_tonumber(L_, -1);
    lua_pop(L_, 2);
    return value;
  }

  lua_State* L_;
  int function_;
  int count_ = 0;
};

uint32_t op_of(uint32_t code) { return code & 0xff; }
uint32_t register_of(uint32_t code) { return (code >> 8) & 0xff; }

// Returns the ops of a chunk.
std::vector<uint32_t> ops_of(lua_State* L, const char* chunk) {
  std::vector<uint32_t> ops;
  if (luaL_loadstring(L, chunk) == 0) {
    Instructions code(L);
    for (int at = 0; at < code.count(); ++at) ops.push_back(op_of(code.code(at)));
  }
  lua_pop(L, 1);
  return ops;
}

// Returns the last op of a chunk.
uint32_t last_op(lua_State* L, const char* chunk) {
  const auto ops = ops_of(L, chunk);
  return ops.size() > 1 ? ops.back() : 0;
}

}  // namespace

int tail_call_line(lua_State* L) {
  if (!lua_isfunction(L, -1) || lua_iscfunction(L, -1) || !lua_checkstack(L, 12)) return 0;
  const auto plain = last_op(L, "return f()"), open = last_op(L, "return f(...)");
  Instructions code(L);
  std::optional<int> line;
  for (int at = 1; at < code.count(); ++at) {
    const auto call = code.code(at);
    if (op_of(call) != plain && op_of(call) != open) continue;
    // The call's own line is where its arguments end; the function was read where it begins.
    int begin = at - 1;
    while (begin > 0 && register_of(code.code(begin)) != register_of(call)) --begin;
    const int found = code.line(begin > 0 ? begin : at);
    if (line && *line != found) return 0;
    line = found;
  }
  return line.value_or(0);
}

int result_line(lua_State* L) {
  if (!lua_isfunction(L, -1) || lua_iscfunction(L, -1) || !lua_checkstack(L, 12)) return 0;
  const auto empty = ops_of(L, "return {}"), constant = ops_of(L, "return {1}");
  if (empty.size() < 3 || constant.size() < 3) return 0;
  const auto result = empty.back();
  const auto makes_table = [&](uint32_t op) { return op == empty[1] || op == constant[1]; };
  Instructions code(L);
  std::optional<int> line;
  for (int at = 1; at < code.count(); ++at) {
    const auto returned = code.code(at);
    if (op_of(returned) != result) continue;
    int begin = at - 1;
    while (begin > 0 && !(makes_table(op_of(code.code(begin))) &&
                          register_of(code.code(begin)) == register_of(returned))) {
      --begin;
    }
    if (begin == 0 || (line && *line != code.line(begin))) return 0;
    line = code.line(begin);
  }
  return line.value_or(0);
}

}  // namespace perigee::lua
