#include "binding/modules.h"

#include "base/fail.h"
#include "binding/entry.h"

namespace perigee::binding {
namespace {

// Registry keys: the metatable of instances, and the methods that every class has.
const char kInstance = 0;
const char kMethods = 0;

using Role = Tensors::Role;

struct Instance {
  uint32_t index;  // in Context::modules
};

// The environment of an instance's userdata holds its fields, and its class under 1.
void push_fields(lua_State* L, int index) { lua_getfenv(L, index); }

void push_class(lua_State* L, int index) {
  push_fields(L, index);
  lua_rawgeti(L, -1, 1);
  lua_remove(L, -2);
}

std::shared_ptr<LuaModule> module_receiver(lua_State* L, Context& context) {
  auto module = module_at(context, L, 1);
  if (!module) {
    fail("model", "a method of a module is called with a colon, but got {} before it",
         luaL_typename(L, 1));
  }
  return module;
}

std::string field_name(lua_State* L, int index) {
  if (lua_type(L, index) != LUA_TSTRING) {
    fail("model", "a module's fields have names, but got a {}: modules in order are nn.ModuleList",
         luaL_typename(L, index));
  }
  return lua_tostring(L, index);
}

// Upvalue of a class's metatable: its type name.
int construct(lua_State* L, Context& context) {
  if (context.phase != Context::Phase::model) {
    fail("model", "modules are made in the function `model`, not in forward or at the top");
  }
  const std::string type = lua_tostring(L, lua_upvalueindex(1));
  const auto index = static_cast<uint32_t>(context.modules.size());
  context.modules.push_back(std::make_shared<LuaModule>(type));
  const int arguments = lua_gettop(L) - 1;
  static_cast<Instance*>(lua_newuserdata(L, sizeof(Instance)))->index = index;
  push_registered(L, &kInstance);
  lua_setmetatable(L, -2);
  lua_createtable(L, 1, 8);
  lua_pushvalue(L, 1);
  lua_rawseti(L, -2, 1);
  lua_setfenv(L, -2);
  lua_replace(L, 1);  // instance, arguments
  push_class(L, 1);
  lua_getfield(L, -1, "init");
  lua_remove(L, -2);
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
    if (arguments > 0) {
      fail("model", "{} has no function init, but is made with {} arguments", type, arguments);
    }
    lua_settop(L, 1);
    return 1;
  }
  lua_pushvalue(L, 1);
  for (int i = 0; i < arguments; ++i) lua_pushvalue(L, 2 + i);
  lua_call(L, arguments + 1, 0);
  lua_settop(L, 1);
  return 1;
}

int get_field(lua_State* L, Context& context) {
  const auto module = module_receiver(L, context);
  const auto name = field_name(L, 2);
  push_fields(L, 1);
  lua_pushvalue(L, 2);
  lua_rawget(L, -2);
  if (!lua_isnil(L, -1)) return 1;
  Role role;
  if (const auto tensor = module->find_tensor(name, role); tensor.defined()) {
    if (context.phase == Context::Phase::top) {
      fail("model", "tensors are read in the functions `model` and `forward` only, but got \"{}\"",
           name);
    }
    context.tensors.push(L, tensor, role);
    return 1;
  }
  if (name == "training") {
    lua_pushboolean(L, module->is_training());
    return 1;
  }
  push_class(L, 1);
  lua_getfield(L, -1, name.c_str());
  return 1;
}

void set_tensor(LuaModule& module, const std::string& name, const at::Tensor& tensor, Role role) {
  if (role == Role::buffer) return module.set_buffer(name, tensor);
  if (role != Role::plain) return module.set_parameter(name, tensor, role == Role::parameter);
  fail("model",
       "a module keeps a tensor as nn.Parameter(x) or nn.Buffer(x), but its field \"{}\" "
       "is set to {} alone",
       name, describe(tensor));
}

void refuse_list_of_modules(lua_State* L, Context& context, const std::string& field) {
  if (!lua_istable(L, 3)) return;
  lua_rawgeti(L, 3, 1);
  if (module_at(context, L, lua_gettop(L))) {
    fail("model",
         "a list of modules is nn.ModuleList {{ ... }}, but the field \"{}\" is set to a "
         "table of them",
         field);
  }
  lua_pop(L, 1);
}

int set_field(lua_State* L, Context& context) {
  const auto module = module_receiver(L, context);
  const auto name = field_name(L, 2);
  if (context.phase != Context::Phase::model) {
    fail("model",
         "a module's fields are set in the function `model`, but \"{}\" is set in forward: "
         "write to a buffer with x:copy_(y)",
         name);
  }
  const auto* tensor = context.tensors.get(L, 3);
  if (name.empty() || name.find('.') != std::string::npos) {
    if (tensor || module_at(context, L, 3)) {
      fail("model",
           "a name in a module must have no dots, which separate modules, but got "
           "\"{}\"",
           name);
    }
  }
  if (tensor) {
    set_tensor(*module, name, *tensor, context.tensors.role(L, 3));
  } else if (const auto child = module_at(context, L, 3)) {
    module->set_module(name, child);
  } else {
    refuse_list_of_modules(L, context, name);
    module->remove(name);
  }
  push_fields(L, 1);
  lua_pushvalue(L, 2);
  tensor ? lua_pushnil(L) : lua_pushvalue(L, 3);
  lua_rawset(L, -3);
  return 0;
}

// module(x, ...) is module:forward(x, ...).
int call(lua_State* L, Context& context) {
  const int arguments = lua_gettop(L);
  push_class(L, 1);
  lua_getfield(L, -1, "forward");
  lua_remove(L, -2);
  if (lua_isnil(L, -1)) fail("model", "a module that is called needs a function forward");
  lua_insert(L, 1);
  const lua::State::Entered entered(context.state, L, 1);
  lua_call(L, arguments, LUA_MULTRET);
  return lua_gettop(L);
}

// Upvalues: a list {name, tensor, name, tensor, ...}, position.
int next_named(lua_State* L) {
  const auto at = lua_tointeger(L, lua_upvalueindex(2));
  lua_pushinteger(L, at + 2);
  lua_replace(L, lua_upvalueindex(2));
  lua_rawgeti(L, lua_upvalueindex(1), static_cast<int>(at) + 1);
  lua_rawgeti(L, lua_upvalueindex(1), static_cast<int>(at) + 2);
  return 2;
}

int push_named(lua_State* L, Context& context,
               const torch::OrderedDict<std::string, at::Tensor>& named, bool buffers) {
  lua_createtable(L, 2 * static_cast<int>(named.size()), 0);
  int at = 0;
  for (const auto& item : named) {
    lua_pushstring(L, item.key().c_str());
    lua_rawseti(L, -2, ++at);
    context.tensors.push(L, item.value(),
                         buffers                        ? Role::buffer
                         : item.value().requires_grad() ? Role::parameter
                                                        : Role::frozen);
    lua_rawseti(L, -2, ++at);
  }
  lua_pushinteger(L, 0);
  lua_pushcclosure(L, next_named, 2);
  return 1;
}

int named_parameters(lua_State* L, Context& context) {
  return push_named(L, context, module_receiver(L, context)->named_parameters(), false);
}

int named_buffers(lua_State* L, Context& context) {
  return push_named(L, context, module_receiver(L, context)->named_buffers(), true);
}

}  // namespace

void LuaModule::set_module(const std::string& name, const std::shared_ptr<LuaModule>& child) {
  if (named_children().contains(name)) {
    replace_module(name, child);
  } else {
    remove(name);
    register_module(name, child);
  }
}

void LuaModule::set_parameter(const std::string& name, const at::Tensor& tensor,
                              bool requires_grad) {
  if (auto* had = parameters_.find(name)) {
    *had = tensor;
    had->set_requires_grad(requires_grad);
  } else {
    remove(name);
    register_parameter(name, tensor, requires_grad);
  }
}

void LuaModule::set_buffer(const std::string& name, const at::Tensor& tensor) {
  auto buffers = named_buffers(/*recurse=*/false);
  if (auto* had = buffers.find(name)) {
    *had = tensor;
    set_buffers(buffers);
  } else {
    remove(name);
    register_buffer(name, tensor);
  }
}

void LuaModule::remove(const std::string& name) {
  if (parameters_.contains(name)) parameters_.erase(name);
  if (named_children().contains(name)) unregister_module(name);
  if (auto buffers = named_buffers(/*recurse=*/false); buffers.contains(name)) {
    buffers.erase(name);
    set_buffers(buffers);
  }
}

void LuaModule::set_buffers(const Buffers& buffers) {
  LuaModule with(name());
  with.parameters_ = parameters_;
  for (const auto& item : named_children()) with.register_module(item.key(), item.value());
  for (const auto& item : buffers) with.register_buffer(item.key(), item.value());
  *this = with;
}

at::Tensor LuaModule::find_tensor(const std::string& name, Role& role) const {
  if (const auto* parameter = parameters_.find(name)) {
    role = parameter->requires_grad() ? Role::parameter : Role::frozen;
    return *parameter;
  }
  const auto buffers = named_buffers(/*recurse=*/false);
  role = Role::buffer;
  const auto* buffer = buffers.find(name);
  return buffer ? *buffer : at::Tensor();
}

void open_modules(lua_State* L) {
  lua::State::of(L).caller = entry<call>;
  lua_newtable(L);
  set_entry<get_field>(L, "__index");
  set_entry<set_field>(L, "__newindex");
  set_entry<call>(L, "__call");
  set_registered(L, &kInstance);
  lua_newtable(L);
  set_entry<named_parameters>(L, "named_parameters");
  set_entry<named_buffers>(L, "named_buffers");
  set_registered(L, &kMethods);
}

int make_class(lua_State* L) {
  luaL_checktype(L, 1, LUA_TSTRING);
  lua_settop(L, 2);
  lua_newtable(L);  // the class
  lua_newtable(L);  // its metatable
  lua_pushvalue(L, 1);
  lua_pushcclosure(L, entry<construct>, 1);
  lua_setfield(L, -2, "__call");
  if (lua_istable(L, 2)) {
    lua_pushvalue(L, 2);
  } else {
    push_registered(L, &kMethods);
  }
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  return 1;
}

std::shared_ptr<LuaModule> module_at(Context& context, lua_State* L, int index) {
  if (!is_instance(L, index, &kInstance)) return nullptr;
  return context.modules.at(static_cast<const Instance*>(lua_touserdata(L, index))->index);
}

}  // namespace perigee::binding
