#include "binding/torch_module.h"

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "base/fail.h"
#include "binding/arguments.h"
#include "binding/entry.h"
#include "binding/modules.h"
#include "binding/ops.h"
#include "capture/capture.h"
#include "capture/device/dtype.h"
#include "lua/sandbox/sandbox.h"

namespace perigee::binding {
namespace {

using Role = Tensors::Role;

int get_op(lua_State* L, Context&) {
  const std::string name = lua_type(L, 2) == LUA_TSTRING ? lua_tostring(L, 2) : luaL_typename(L, 2);
  const auto* op = find_op(name);
  if (!op) fail("model", "torch.{} is no op of LibTorch{}", name, nearest_op(name));
  push_op(L, *op);
  return 1;
}

const at::Tensor& tensor_argument(lua_State* L, Context& context, const char* function) {
  const auto* tensor = context.tensors.get(L, 1);
  if (!tensor) {
    fail("model", "nn.{} takes a tensor, but got {}", function,
         lua_isnone(L, 1) ? "nothing" : luaL_typename(L, 1));
  }
  return *tensor;
}

int parameter(lua_State* L, Context& context) {
  const auto& tensor = tensor_argument(L, context, "Parameter");
  const bool trained = lua_isnoneornil(L, 2) || lua_toboolean(L, 2);
  if (!tensor.is_floating_point()) {
    fail("model", "a parameter is of a floating type, but got {}", describe(tensor));
  }
  if (tensor.requires_grad() ? !trained : trained && context.tensors.role(L, 1) == Role::frozen) {
    fail("model",
         "nn.Parameter(x, {0}) must get a tensor of its own, but got a {1} parameter: write "
         "x:requires_grad_({0}), which holds in every module that has it, or "
         "nn.Parameter(x:clone(), {0})",
         trained, trained ? "frozen" : "trained");
  }
  context.tensors.push(L, tensor, trained ? Role::parameter : Role::frozen);
  return 1;
}

int buffer(lua_State* L, Context& context) {
  context.tensors.push(L, tensor_argument(L, context, "Buffer"), Role::buffer);
  return 1;
}

// The numbers of nested lists in order, and their shape.
struct Literal {
  std::vector<double> numbers;
  std::vector<int64_t> shape;
  bool whole = true;

  void read(lua_State* L, int index, size_t depth) {
    if (lua_istable(L, index)) {
      check_list(L, index);
      const auto count = static_cast<int64_t>(lua_objlen(L, index));
      if (depth == shape.size() && numbers.empty()) shape.push_back(count);
      if (depth >= shape.size() || shape[depth] != count) uneven();
      for (int64_t i = 1; i <= count; ++i) {
        lua_rawgeti(L, index, static_cast<int>(i));
        read(L, lua_gettop(L), depth + 1);
        lua_pop(L, 1);
      }
      return;
    }
    if (depth != shape.size()) uneven();
    if (lua_type(L, index) != LUA_TNUMBER) {
      fail("model", "torch.tensor takes numbers, but got a {}", luaL_typename(L, index));
    }
    numbers.push_back(lua_tonumber(L, index));
    whole = whole && numbers.back() == static_cast<double>(static_cast<int64_t>(numbers.back()));
  }

  [[noreturn]] static void uneven() {
    fail("model", "torch.tensor takes a number, or lists of lists of the same length");
  }
};

at::Tensor tensor_of(const std::vector<double>& numbers) {
  // Below everything that the session puts above the CPU: it keeps no large tensor there.
  const c10::impl::ExcludeDispatchKeyGuard plain(
      c10::DispatchKeySet({c10::DispatchKey::DeferredInit, c10::DispatchKey::Functionalize}));
  return at::tensor(numbers, at::TensorOptions().dtype(at::kDouble).device(at::kCPU));
}

at::ScalarType literal_type(lua_State* L, bool whole) {
  if (lua_isnoneornil(L, 2)) {
    return whole ? at::kLong : c10::typeMetaToScalarType(c10::get_default_dtype());
  }
  if (lua_istable(L, 2)) lua_getfield(L, 2, "dtype");
  const auto type = lua_type(L, -1) == LUA_TSTRING ? graph::dtype_of(lua_tostring(L, -1))
                                                   : std::nullopt;
  if (!type) fail("model", "torch.tensor takes {{ dtype = \"float32\" }} after the numbers");
  return tracing::scalar_type(*type);
}

int literal(lua_State* L, Context& context) {
  if (context.phase == Context::Phase::top) {
    fail("model", "tensors are made in the functions `model` and `forward` only");
  }
  lua_settop(L, 2);
  Literal values;
  values.read(L, 1, 0);
  const auto type = literal_type(L, values.whole);
  auto tensor = tensor_of(values.numbers).to(type).reshape(values.shape);
  if (context.phase == Context::Phase::model) {  // a buffer's first values belong to the init graph
    tensor = at::empty(values.shape, type).copy_(tensor);
  }
  context.tensors.push(L, tensor);
  return 1;
}

// Calls the function at 1 with the rest while Guard lives; raises its error afterwards.
template <class Guard>
int call_guarded(lua_State* L, Guard&& make_guard) {
  bool good;
  {
    const auto guard = make_guard();
    good = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0) == 0;
  }
  return good ? lua_gettop(L) : lua_error(L);
}

int no_grad(lua_State* L) {
  luaL_checktype(L, 1, LUA_TFUNCTION);
  return call_guarded(L, [] { return at::NoGradGuard(); });
}

// Of a name, or of a module: then its path.
int scope(lua_State* L) {
  const auto module = module_at(Context::of(L), L, 1);
  const std::string name = module ? "" : luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TFUNCTION);
  lua_remove(L, 1);
  return call_guarded(
      L, [&] { return module ? tracing::ScopeGuard(*module) : tracing::ScopeGuard(name); });
}

// check(condition, message): an error at the user's line, also from within a layer of perigee.nn.
int check(lua_State* L, Context&) {
  if (!lua_toboolean(L, 1)) fail("model", "{}", luaL_checkstring(L, 2));
  return 0;
}

}  // namespace

void push_torch_module(lua_State* L) {
  lua_newtable(L);
  lua_pushcfunction(L, make_class);
  lua_setfield(L, -2, "Module");
  set_entry<parameter>(L, "Parameter");
  set_entry<buffer>(L, "Buffer");
  set_entry<literal>(L, "tensor");
  set_entry<check>(L, "check");
  lua_pushcfunction(L, no_grad);
  lua_setfield(L, -2, "no_grad");
  lua_pushcfunction(L, scope);
  lua_setfield(L, -2, "scope");
  lua_newtable(L);
  set_entry<get_op>(L, "__index");
  lua_setmetatable(L, -2);
  lua::make_read_only(L, "perigee.torch");
}

}  // namespace perigee::binding
