#include "binding/context.h"

#include <ATen/ATen.h>

#include "binding/modules.h"
#include "binding/torch_module.h"

namespace perigee::binding {
namespace {

const char kContext = 0;  // registry key

lua::Options with_torch(lua::Options options) {
  options.module = [](lua_State* L, std::string_view name) {
    if (name != "perigee.torch") return false;
    push_torch_module(L);
    return true;
  };
  return options;
}

int open(lua_State* L) {
  open_tensors(L);
  open_modules(L);
  return 0;
}

}  // namespace

Context::Context(lua::Options options) : state(with_torch(std::move(options))) {
  lua_State* L = state.raw();
  lua_pushlightuserdata(L, const_cast<char*>(&kContext));
  lua_pushlightuserdata(L, this);
  lua_rawset(L, LUA_REGISTRYINDEX);
  lua_pushcfunction(L, open);
  state.call(0);
  lua_settop(L, 0);
}

Context& Context::of(lua_State* L) {
  lua_pushlightuserdata(L, const_cast<char*>(&kContext));
  lua_rawget(L, LUA_REGISTRYINDEX);
  auto* context = static_cast<Context*>(lua_touserdata(L, -1));
  lua_pop(L, 1);
  return *context;
}

Running::Running(Context& context, Context::Phase phase, at::ScalarType dtype)
    : context_(context), before_(c10::get_default_dtype()) {
  context_.phase = phase;
  c10::set_default_dtype(caffe2::TypeMeta::fromScalarType(dtype));
}

Running::~Running() {
  c10::set_default_dtype(before_);
  context_.phase = Context::Phase::top;
  context_.tensors.clear();
}

}  // namespace perigee::binding
