// Tensors in Lua: handles that are valid until the pass that made them ends, so that no tensor of a
// capture outlives it, independent of Lua's garbage collector.
#pragma once

#include <ATen/core/Tensor.h>

#include <lua.hpp>
#include <string>
#include <vector>

namespace perigee::binding {

class Tensors {
 public:
  // The role of a tensor in the module that it is assigned to.
  enum class Role { plain, parameter, frozen, buffer };

  // Pushes a handle of the tensor, nil where it is undefined.
  void push(lua_State* L, const at::Tensor& tensor, Role role = Role::plain);

  // Returns the tensor at `index`, or nullptr where the value is no tensor. Throws Error for a
  // handle of an earlier pass.
  const at::Tensor* get(lua_State* L, int index) const;
  Role role(lua_State* L, int index) const;

  // Invalidates every handle.
  void clear();
  bool is_void(uint32_t pass) const { return pass != pass_; }

 private:
  struct Entry {
    at::Tensor tensor;
    Role role;
  };
  const Entry* find(lua_State* L, int index) const;

  std::vector<Entry> entries_;
  uint32_t pass_ = 0;
};

// Returns "float32[2, 3]".
std::string describe(const at::Tensor& tensor);

// Makes the metatable of handles: operators, sizes, and every op as a method.
void open_tensors(lua_State* L);

}  // namespace perigee::binding
