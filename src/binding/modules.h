// Modules written in Lua: a class is a table of functions, an instance a torch::nn::Module whose
// children, parameters and buffers are the fields that the script assigns, in that order.
#pragma once

#include <torch/nn/module.h>

#include <lua.hpp>
#include <memory>
#include <string>

#include "binding/context.h"

namespace perigee::binding {

class LuaModule : public torch::nn::Module {
 public:
  explicit LuaModule(const std::string& type) : torch::nn::Module(type) {}

  // Sets the child, parameter or buffer of that name, in place of any other.
  void set_module(const std::string& name, const std::shared_ptr<LuaModule>& child);
  void set_parameter(const std::string& name, const at::Tensor& tensor, bool requires_grad);
  void set_buffer(const std::string& name, const at::Tensor& tensor);

  // Removes the child, parameter or buffer of that name, where there is one.
  void remove(const std::string& name);

  // Returns the parameter or buffer of that name, undefined where there is none, and its role.
  at::Tensor find_tensor(const std::string& name, Tensors::Role& role) const;

 private:
  using Buffers = torch::OrderedDict<std::string, at::Tensor>;

  // LibTorch neither replaces nor removes a buffer: the module becomes one that has these.
  void set_buffers(const Buffers& buffers);
};

// Makes the metatables of classes and instances.
void open_modules(lua_State* L);

// perigee.torch's Module(name, base?): pushes a new class.
int make_class(lua_State* L);

// Returns the module at `index`, or nullptr where the value is no module.
std::shared_ptr<LuaModule> module_at(Context& context, lua_State* L, int index);

}  // namespace perigee::binding
