#include "lua/guard.h"

#include <string>
#include <string_view>

#include "lua/sandbox/tail_call.h"
#include "lua/state.h"

namespace perigee::lua {
namespace {

void push_line(lua_State* L, std::string_view source, int line) {
  const auto text = std::string(source.substr(1)) + ":" + std::to_string(line) + ": ";
  lua_pushlstring(L, text.data(), text.size());
}

}  // namespace

// Visits the running functions from the innermost outwards. A function that the host called is not
// among them once it has made a tail call: then the line of that call is used, or the function's
// first line where it has several tail calls.
void push_user_line(lua_State* L) {
  const auto& state = State::of(L);
  const auto ours = "@" + state.options().runtime_folder + "/perigee/";
  const auto is_user = [&](std::string_view source, int line) {
    return line > 0 && source.starts_with("@") && !source.starts_with(ours);
  };
  // Number of functions that the host called and that were not visited.
  auto called = state.functions.size();
  bool returned = true;
  const auto push_call_line = [&] {
    if (!returned || called == 0) return false;
    const auto& begin = state.functions[called - 1];
    State::push_function(L, called - 1);
    const int line = tail_call_line(L);
    lua_pop(L, 1);
    if (!is_user(begin.source, line > 0 ? line : begin.line)) return false;
    push_line(L, begin.source, line > 0 ? line : begin.line);
    return true;
  };
  lua_Debug frame;
  for (int level = 1; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "Slf", &frame);
    const bool host = state.caller && lua_tocfunction(L, -1) == state.caller;
    if (frame.currentline > 0 && is_user(frame.source, frame.currentline)) {
      lua_pop(L, 1);
      return push_line(L, frame.source, frame.currentline);
    }
    if (called > 0 && !host) {
      State::push_function(L, called - 1);
      if (lua_rawequal(L, -1, -2)) returned = false;
      lua_pop(L, 1);
    }
    lua_pop(L, 1);
    if (host && called > 0) {
      if (push_call_line()) return;
      --called;
      returned = true;
    }
  }
  if (push_call_line()) return;
  if (state.place.empty()) return luaL_where(L, 1);
  lua_pushlstring(L, state.place.data(), state.place.size());
}

}  // namespace perigee::lua
