// The objects of one model's script: its Lua state, and the tensors and modules that Lua has
// handles of.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "binding/tensors.h"
#include "lua/state.h"

namespace perigee::binding {

class LuaModule;

struct Context {
  explicit Context(lua::Options options);
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // Returns the context of the state. Throws Error for a state that is no model's.
  static Context& of(lua_State* L);

  // Tensors and modules are made in `model` and used there and in `forward`; at the script's top
  // there are none.
  enum class Phase { top, model, forward };
  Phase phase = Phase::top;

  Tensors tensors;
  std::vector<std::shared_ptr<LuaModule>> modules;
  lua::State state;  // last: it may hold handles of the rest
};

// During its lifetime scripts may use tensors, and new floating tensors have the given type. When
// it ends, every handle of a tensor becomes invalid.
class Running {
 public:
  Running(Context& context, Context::Phase phase, at::ScalarType dtype);
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

 private:
  Context& context_;
  caffe2::TypeMeta before_;
};

}  // namespace perigee::binding
