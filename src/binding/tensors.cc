#include "binding/tensors.h"

#include <fmt/ranges.h>

#include "base/fail.h"
#include "binding/entry.h"
#include "binding/ops.h"
#include "capture/device/dtype.h"

namespace perigee::binding {
namespace {

const char kTensor = 0;  // registry key of the metatable

struct Handle {
  uint32_t slot, pass;
};

const Overloads& op(const char* name) { return *find_op(name); }

// Makes (tensor, number) of the operands (number, tensor).
void swap_operands(lua_State* L) { lua_insert(L, 1); }

bool number_first(lua_State* L) { return lua_type(L, 1) == LUA_TNUMBER; }

// Refuses the result of a comparison with a number, which Lua makes without asking the tensor.
template <int (*run)(lua_State*, Context&)>
int arithmetic(lua_State* L, Context& context) {
  if (lua_isboolean(L, 1) || lua_isboolean(L, 2)) {
    fail("model",
         "a tensor's operand must be a tensor or a number, but got a boolean: comparisons of "
         "tensors are functions, torch.ne(a, b), torch.lt(a, b), ...");
  }
  return run(L, context);
}

int add(lua_State* L, Context& context) {
  if (number_first(L)) swap_operands(L);
  return call_op(context, L, op("add"), 1, 2);
}

int subtract(lua_State* L, Context& context) {
  if (!number_first(L)) return call_op(context, L, op("sub"), 1, 2);
  swap_operands(L);
  return call_op(context, L, op("rsub"), 1, 2);
}

int multiply(lua_State* L, Context& context) {
  if (number_first(L)) swap_operands(L);
  return call_op(context, L, op("mul"), 1, 2);
}

int divide(lua_State* L, Context& context) {
  if (!number_first(L)) return call_op(context, L, op("div"), 1, 2);
  call_op(context, L, op("reciprocal"), 2, 1);
  lua_replace(L, 2);
  return multiply(L, context);
}

int power(lua_State* L, Context& context) { return call_op(context, L, op("pow"), 1, 2); }
int modulo(lua_State* L, Context& context) { return call_op(context, L, op("remainder"), 1, 2); }
int negate(lua_State* L, Context& context) { return call_op(context, L, op("neg"), 1, 1); }

int refuse_comparison(lua_State*, Context&) {
  fail("model",
       "Lua's comparisons give true or false, but a tensor has no value while the model "
       "is captured: write torch.eq(a, b), torch.lt(a, b), ...");
}

int refuse_field(lua_State*, Context&) {
  fail("model", "a tensor has no fields to set: write x:copy_(y), or keep it in a local variable");
}

int to_string(lua_State* L) {
  const auto* handle = static_cast<const Handle*>(lua_touserdata(L, 1));
  const auto& tensors = Context::of(L).tensors;
  const auto text = tensors.is_void(handle->pass) ? "a tensor of an earlier pass"
                                                  : describe(*tensors.get(L, 1));
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

const at::Tensor& tensor_receiver(lua_State* L, Context& context) {
  const auto* tensor = context.tensors.get(L, 1);
  if (!tensor) {
    fail("model", "a method of a tensor is called with a colon, x:size(0), but got {} before it",
         luaL_typename(L, 1));
  }
  return *tensor;
}

int size(lua_State* L, Context& context) {
  const auto& tensor = tensor_receiver(L, context);
  if (lua_isnoneornil(L, 2)) {
    lua_createtable(L, static_cast<int>(tensor.dim()), 0);
    for (int64_t i = 0; i < tensor.dim(); ++i) {
      lua_pushinteger(L, tensor.size(i));
      lua_rawseti(L, -2, static_cast<int>(i) + 1);
    }
    return 1;
  }
  const auto dim = lua_tointeger(L, 2);
  if (lua_type(L, 2) != LUA_TNUMBER || dim < -tensor.dim() || dim >= tensor.dim()) {
    fail("model", "x:size takes a dim of {}, counted from 0, but got {}", describe(tensor),
         lua_type(L, 2) == LUA_TNUMBER ? std::to_string(dim) : luaL_typename(L, 2));
  }
  lua_pushinteger(L, tensor.size(dim));
  return 1;
}

int dims(lua_State* L, Context& context) {
  lua_pushinteger(L, tensor_receiver(L, context).dim());
  return 1;
}

int elements(lua_State* L, Context& context) {
  lua_pushnumber(L, static_cast<lua_Number>(tensor_receiver(L, context).numel()));
  return 1;
}

int first_size(lua_State* L, Context& context) {
  const auto& tensor = tensor_receiver(L, context);
  if (tensor.dim() == 0) fail("model", "#x is the size of dim 0, but x is a scalar");
  lua_pushinteger(L, tensor.size(0));
  return 1;
}

int index(lua_State* L, Context& context) {
  const auto& tensor = tensor_receiver(L, context);
  if (lua_type(L, 2) == LUA_TNUMBER) {  // x[i], as in C++
    lua_pushinteger(L, 0);
    lua_insert(L, 2);
    return call_op(context, L, op("select"), 1, 3);
  }
  const std::string name = lua_isstring(L, 2) ? lua_tostring(L, 2) : luaL_typename(L, 2);
  static const std::vector<std::pair<std::string_view, lua_CFunction>> natives = {
      {"size", entry<size>}, {"dim", entry<dims>}, {"numel", entry<elements>}};
  for (const auto& [native, function] : natives) {
    if (name != native) continue;
    lua_pushcfunction(L, function);
    return 1;
  }
  if (name == "shape") {
    lua_settop(L, 1);
    return size(L, context);
  }
  if (name == "dtype") {
    lua_pushstring(L, std::string(graph::name_of(tracing::dtype_of(tensor.scalar_type()))).c_str());
    return 1;
  }
  const auto* found = find_op(name);
  if (!found) fail("model", "a tensor has no method \"{}\"{}", name, nearest_op(name));
  push_op(L, *found);
  return 1;
}

}  // namespace

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{}[{}]", graph::name_of(tracing::dtype_of(tensor.scalar_type())),
                     fmt::join(tensor.sizes(), ", "));
}

void Tensors::push(lua_State* L, const at::Tensor& tensor, Role role) {
  if (!tensor.defined()) return lua_pushnil(L);
  auto* handle = static_cast<Handle*>(lua_newuserdata(L, sizeof(Handle)));
  *handle = {static_cast<uint32_t>(entries_.size()), pass_};
  push_registered(L, &kTensor);
  lua_setmetatable(L, -2);
  entries_.push_back({tensor, role});
}

const Tensors::Entry* Tensors::find(lua_State* L, int index) const {
  if (!is_instance(L, index, &kTensor)) return nullptr;
  const auto* handle = static_cast<const Handle*>(lua_touserdata(L, index));
  if (is_void(handle->pass)) {
    fail("model",
         "a tensor is good in the pass that made it only, but the script kept one from an "
         "earlier pass: keep it as nn.Buffer");
  }
  return &entries_[handle->slot];
}

const at::Tensor* Tensors::get(lua_State* L, int index) const {
  const auto* entry = find(L, index);
  return entry ? &entry->tensor : nullptr;
}

Tensors::Role Tensors::role(lua_State* L, int index) const {
  const auto* entry = find(L, index);
  return entry ? entry->role : Role::plain;
}

void Tensors::clear() {
  entries_.clear();
  ++pass_;
}

void open_tensors(lua_State* L) {
  lua_newtable(L);
  set_entry<arithmetic<add>>(L, "__add");
  set_entry<arithmetic<subtract>>(L, "__sub");
  set_entry<arithmetic<multiply>>(L, "__mul");
  set_entry<arithmetic<divide>>(L, "__div");
  set_entry<arithmetic<power>>(L, "__pow");
  set_entry<arithmetic<modulo>>(L, "__mod");
  set_entry<negate>(L, "__unm");
  set_entry<first_size>(L, "__len");
  set_entry<refuse_comparison>(L, "__eq");
  set_entry<refuse_comparison>(L, "__lt");
  set_entry<refuse_comparison>(L, "__le");
  set_entry<index>(L, "__index");
  set_entry<refuse_field>(L, "__newindex");
  lua_pushcfunction(L, to_string);
  lua_setfield(L, -2, "__tostring");
  set_registered(L, &kTensor);
}

}  // namespace perigee::binding
