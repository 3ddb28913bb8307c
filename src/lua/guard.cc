#include "lua/guard.h"

#include <string>
#include <string_view>

#include "lua/state.h"

namespace perigee::lua {
namespace {

void push_line(lua_State* L, std::string_view source, int line) {
  const auto text = std::string(source.substr(1)) + ":" + std::to_string(line) + ": ";
  lua_pushlstring(L, text.data(), text.size());
}

}  // namespace

// Goes outwards over the running functions. Where the one that the host called is gone, since it
// ended with a tail call, its first line stands for it.
void push_user_line(lua_State* L) {
  const auto& state = State::of(L);
  const auto ours = "@" + state.options().runtime_folder + "/perigee/";
  const auto is_user = [&](std::string_view source, int line) {
    return line > 0 && source.starts_with("@") && !source.starts_with(ours);
  };
  auto called = state.functions.rbegin();
  bool gone = true;
  lua_Debug frame;
  for (int level = 1; lua_getstack(L, level, &frame); ++level) {
    lua_getinfo(L, "Slf", &frame);
    const bool host = state.caller && lua_tocfunction(L, -1) == state.caller;
    lua_pop(L, 1);
    if (frame.currentline > 0) {
      if (is_user(frame.source, frame.currentline)) {
        return push_line(L, frame.source, frame.currentline);
      }
      gone = false;
    } else if (host && called != state.functions.rend()) {
      if (gone && is_user(called->source, called->line)) {
        return push_line(L, called->source, called->line);
      }
      ++called;
      gone = true;
    }
  }
  if (gone && called != state.functions.rend() && is_user(called->source, called->line)) {
    return push_line(L, called->source, called->line);
  }
  luaL_where(L, 1);
}

}  // namespace perigee::lua
