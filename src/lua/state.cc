#include "lua/state.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/deadline.h"
#include "base/fail.h"
#include "base/log_format.h"
#include "lua/places.h"
#include "lua/sandbox/sandbox.h"

namespace perigee::lua {
namespace {

const char kFunctions = 0;             // its address is the registry's key of State::functions
constexpr int kHookInterval = 10'000;  // VM instructions between two looks at the clock

std::string read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file || std::filesystem::is_directory(path)) {
    fail("lua", "a script must be a readable file, but {} is not", path);
  }
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

}  // namespace

State& State::of(lua_State* L) {
  void* self = nullptr;
  lua_getallocf(L, &self);
  return *static_cast<State*>(self);
}

void* State::allocate(void* self, void* block, size_t old_size, size_t new_size) {
  auto& state = *static_cast<State*>(self);
  if (!block) old_size = 0;
  if (new_size == 0) {
    std::free(block);
    state.used_ -= static_cast<int64_t>(old_size);
    return nullptr;
  }
  const auto used = state.used_ + static_cast<int64_t>(new_size) - static_cast<int64_t>(old_size);
  if (used > state.options_.limits.megabytes << 20 && new_size > old_size) {
    state.out_of_memory_ = true;
    return nullptr;
  }
  void* result = std::realloc(block, new_size);
  if (result) state.used_ = used;
  return result;
}

void State::watch(lua_State* L, lua_Debug*) {
  auto& state = of(L);
  if (state.expired_ || std::chrono::steady_clock::now() > state.deadline_) {
    state.expired_ = true;
    luaL_where(L, 0);  // a hook has no level of its own
    lua_pushfstring(L, "the script ran longer than %f s (raise it with --script-seconds)",
                    state.options_.limits.seconds);
    lua_concat(L, 2);
    lua_error(L);
  }
}

int State::add_traceback(lua_State* L) {
  auto& state = of(L);
  if (!lua_isstring(L, 1)) {
    const auto text = describe(L, 1);
    lua_pushfstring(L, "error object: %s", text.c_str());
    lua_replace(L, 1);
  }
  if (state.traceback_.empty()) {
    luaL_traceback(L, L, nullptr, 1);
    state.traceback_ = lua_tostring(L, -1);
    lua_pop(L, 1);
  }
  return 1;
}

State::State(Options options) : options_(std::move(options)) {
  if (!options_.print) {
    options_.print = [](std::string_view text) { log::info("{}", text); };
  }
  L_ = lua_newstate(&State::allocate, this);
  if (!L_) fail_run("lua", "a Lua state needs memory, but none was to be had");
  luaJIT_setmode(L_, 0,
                 LUAJIT_MODE_ENGINE | LUAJIT_MODE_OFF);  // hooks do not fire in compiled code
  lua_sethook(L_, &State::watch, LUA_MASKCOUNT, kHookInterval);
  deadline_ = std::chrono::steady_clock::time_point::max();
  try {
    lua_pushcfunction(L_, open_sandbox);
    call(0);
    lua_settop(L_, 0);
  } catch (...) {
    lua_close(L_);
    throw;
  }
}

State::~State() {
  lua_sethook(L_, nullptr, 0, 0);
  lua_close(L_);
}

void State::load(std::string_view text, std::string_view name) {
  if (!text.empty() && text.front() == LUA_SIGNATURE[0]) {
    fail("lua", "a script must be Lua text, but {} is compiled bytecode", name);
  }
  if (text.starts_with("#!")) {  // keeps the line count
    const auto end = text.find('\n');
    text = end == std::string_view::npos ? std::string_view() : text.substr(end);
  }
  if (depth_ == 0) script_name_ = name;
  const auto chunk = fmt::format("@{}", name);
  if (luaL_loadbuffer(L_, text.data(), text.size(), chunk.c_str()) != 0) {
    const std::string message = lua_tostring(L_, -1);
    lua_pop(L_, 1);
    fail("lua", "{}", message);
  }
  push_environment(L_);
  lua_setfenv(L_, -2);
  if (depth_ == 0) result_place = lua::result_place(L_, lua_gettop(L_));
}

void State::run_text(std::string_view text, std::string_view name) {
  if (script_folder_.empty()) script_folder_ = std::filesystem::path(name).parent_path().string();
  load(text, name);
  call(0);
}

void State::run_file(const std::string& path) {
  const auto text = read_text(path);
  const auto previous = script_folder_;
  script_folder_ = std::filesystem::path(path).parent_path().string();
  if (script_folder_.empty()) script_folder_ = ".";
  load(text, path);
  call(0);
  if (!previous.empty()) script_folder_ = previous;
}

void State::push_function(lua_State* L, size_t at) {
  lua_pushlightuserdata(L, const_cast<char*>(&kFunctions));
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (lua_istable(L, -1)) {
    lua_rawgeti(L, -1, static_cast<int>(at) + 1);
    lua_remove(L, -2);
  }
}

State::Entered::Entered(State& state, lua_State* L, int index) : state_(state) {
  Begin begin;
  if (lua_isfunction(L, index)) {
    lua_Debug about;
    lua_pushvalue(L, index);
    lua_getinfo(L, ">S", &about);
    begin = {about.source, about.linedefined};
  }
  // Kept by its place, so that leaving it needs no call into Lua.
  lua_pushlightuserdata(L, const_cast<char*>(&kFunctions));
  lua_rawget(L, LUA_REGISTRYINDEX);
  if (!lua_istable(L, -1)) {
    lua_pop(L, 1);
    lua_newtable(L);
    lua_pushlightuserdata(L, const_cast<char*>(&kFunctions));
    lua_pushvalue(L, -2);
    lua_rawset(L, LUA_REGISTRYINDEX);
  }
  lua_pushvalue(L, index > 0 ? index : lua_gettop(L) + index);
  lua_rawseti(L, -2, static_cast<int>(state.functions.size()) + 1);
  lua_pop(L, 1);
  state.functions.push_back(std::move(begin));
}

void State::call(int arguments) {
  const int base = lua_gettop(L_) - arguments;
  const Entered entered(*this, L_, base);
  lua_pushcfunction(L_, &State::add_traceback);
  lua_insert(L_, base);
  if (depth_++ == 0) {
    expired_ = out_of_memory_ = false;
    traceback_.clear();
    infeasible.clear();
    deadline_ = deadline_after(options_.limits.seconds);
  }
  auto* const host = std::exchange(host_, nullptr);
  if (host) host->stop();
  const int status = lua_pcall(L_, arguments, 1, base);
  if (host) host->start();
  host_ = host;
  --depth_;
  lua_remove(L_, base);
  if (status == 0) return;
  std::string message = lua_isstring(L_, -1) ? lua_tostring(L_, -1) : "an error without a text";
  lua_pop(L_, 1);
  if (status == LUA_ERRMEM || out_of_memory_) {
    lua_gc(L_, LUA_GCCOLLECT, 0);
    message = fmt::format("the script needed more than {} MB (raise it with --script-megabytes)",
                          options_.limits.megabytes);
  }
  if (!traceback_.empty()) log::debug("{}", traceback_);
  // A tail call has no line of its own; the script's name is what is left.
  if (message.find(script_name_) == std::string::npos)
    message = place.empty() ? fmt::format("{}: {}", script_name_, message) : place + message;
  if (!infeasible.empty() && message.find(infeasible) != std::string::npos) {
    throw Error(Status::infeasible, "lua", message);
  }
  fail("lua", "{}", message);
}

}  // namespace perigee::lua
