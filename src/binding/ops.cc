#include "binding/ops.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/fail.h"
#include "binding/arguments.h"
#include "binding/entry.h"
#include "capture/record/session.h"

namespace perigee::binding {
namespace {

using c10::FunctionSchema;

// Overloads that write to a tensor of the caller's (out=), and those for dims with names,
// are left out.
bool callable(const FunctionSchema& schema) {
  const auto& overload = schema.overload_name();
  if (overload.find("ame") != overload.npos) return false;  // Dimname, names_dim, ...
  return std::none_of(schema.arguments().begin(), schema.arguments().end(),
                      [](const c10::Argument& argument) { return argument.is_out(); });
}

using Table = std::map<std::string, Overloads, std::less<>>;

// Every op, read once: the dispatcher has about 3,500 overloads.
const Table& table() {
  static const Table all = [] {
    Table table;
    auto& dispatcher = c10::Dispatcher::singleton();
    auto names = dispatcher.getAllOpNames();
    std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) {
      return std::tie(a.name, a.overload_name) < std::tie(b.name, b.overload_name);
    });
    for (const auto& name : names) {
      const auto handle = dispatcher.findSchema(name);
      if (!handle || !callable(handle->schema())) continue;
      const auto short_name = name.name.starts_with("aten::") ? name.name.substr(6)
                                                              : std::string(name.name);
      auto& op = table[short_name];
      op.name = short_name;
      op.handles.push_back(*handle);
    }
    return table;
  }();
  return all;
}

// One call as the script wrote it.
struct Call {
  Context& context;
  lua_State* L;
  int first;         // of the positional arguments on the stack
  int count;         // of them
  int keywords = 0;  // the table of named arguments; 0: none

  Call(Context& context, lua_State* L, int first, int count)
      : context(context), L(L), first(first), count(count) {
    if (count == 0 || !lua_istable(L, first + count - 1)) return;
    if (lua_objlen(L, first + count - 1) > 0) return;
    lua_pushnil(L);
    if (!lua_next(L, first + count - 1)) return;
    if (lua_type(L, -2) == LUA_TSTRING) {
      keywords = first + count - 1;
      --this->count;
    }
    lua_pop(L, 2);
  }
};

// An overload against a call: its arguments, or what does not fit.
struct Attempt {
  torch::jit::Stack values;
  std::string mismatch;
};

class Matcher {
 public:
  // `numbers_as_list`: numbers may stand for a list of any length, x:view(2, -1).
  Matcher(const Call& call, const FunctionSchema& schema, bool numbers_as_list)
      : call_(call), schema_(schema), numbers_as_list_(numbers_as_list) {}

  Attempt run() {
    for (const auto& argument : schema_.arguments()) {
      if (!(argument.kwarg_only() || next_ == call_.count ? named(argument)
                                                          : positional(argument))) {
        return attempt_;
      }
    }
    if (next_ < call_.count) {
      attempt_.mismatch = fmt::format("takes at most {} arguments by position, but got {}", next_,
                                      call_.count);
    } else if (call_.keywords) {
      check_names();
    }
    return attempt_;
  }

 private:
  bool positional(const c10::Argument& argument) {
    const int index = call_.first + next_++;
    if (lua_isnil(call_.L, index) && argument.default_value()) {
      attempt_.values.push_back(*argument.default_value());
      return true;
    }
    if (numbers_as_list_ && is_open_list(argument) && lua_type(call_.L, index) == LUA_TNUMBER) {
      return rest_as_list(index, argument);
    }
    return take(index, argument);
  }

  bool rest_as_list(int index, const c10::Argument& argument) {
    lua_createtable(call_.L, call_.count, 0);
    for (int i = index; i < call_.first + call_.count; ++i) {
      lua_pushvalue(call_.L, i);
      lua_rawseti(call_.L, -2, i - index + 1);
    }
    next_ = call_.count;
    const bool taken = take(lua_gettop(call_.L), argument);
    lua_pop(call_.L, 1);
    return taken;
  }

  bool named(const c10::Argument& argument) {
    if (call_.keywords) {
      lua_getfield(call_.L, call_.keywords, argument.name().c_str());
      const bool given = !lua_isnil(call_.L, -1);
      const bool taken = given && take(lua_gettop(call_.L), argument);
      lua_pop(call_.L, 1);
      if (given) {
        names_.push_back(argument.name());
        return taken;
      }
    }
    names_.push_back(argument.name());
    if (argument.default_value()) {
      attempt_.values.push_back(*argument.default_value());
      return true;
    }
    attempt_.mismatch = fmt::format("argument {} must be {}, but got nothing", argument.name(),
                                    expected(argument));
    return false;
  }

  bool take(int index, const c10::Argument& argument) {
    auto value = read_argument(call_.context, call_.L, index, argument);
    if (value) {
      attempt_.values.push_back(std::move(*value));
      return true;
    }
    attempt_.mismatch = fmt::format("argument {} must be {}, but got {}", argument.name(),
                                    expected(argument), found(call_.context, call_.L, index));
    return false;
  }

  void check_names() {
    lua_pushnil(call_.L);
    while (lua_next(call_.L, call_.keywords)) {
      lua_pop(call_.L, 1);
      const std::string name = lua_type(call_.L, -1) == LUA_TSTRING ? lua_tostring(call_.L, -1)
                                                                    : "1";
      if (std::find(names_.begin(), names_.end(), name) != names_.end()) continue;
      lua_pop(call_.L, 1);
      attempt_.mismatch = fmt::format("has no argument {} to name here{}", name,
                                      did_you_mean(name, names_));
      return;
    }
  }

  const Call& call_;
  const FunctionSchema& schema_;
  bool numbers_as_list_;
  Attempt attempt_;
  int next_ = 0;
  std::vector<std::string> names_;  // of arguments that a name may give
};

// Returns the first overload that fits, or nullptr; `best`: its attempt, or the attempt that got
// the furthest.
const c10::OperatorHandle* choose(const Call& call, const Overloads& op, bool numbers_as_list,
                                  Attempt& best) {
  best = {};
  for (const auto& handle : op.handles) {
    auto attempt = Matcher(call, handle.schema(), numbers_as_list).run();
    const bool fits = attempt.mismatch.empty();
    if (fits || best.mismatch.empty() || attempt.values.size() > best.values.size()) {
      best = std::move(attempt);
    }
    if (fits) return &handle;
  }
  return nullptr;
}

std::string signature(const Overloads& op, const FunctionSchema& schema) {
  std::string text;
  for (const auto& argument : schema.arguments()) {
    if (!text.empty()) text += ", ";
    text += argument.name();
    if (argument.default_value()) text += "?";
  }
  return fmt::format("{}({})", op.name, text);
}

[[noreturn]] void refuse(const Overloads& op, const std::string& mismatch) {
  std::string forms;
  constexpr size_t most = 4;
  for (size_t i = 0; i < std::min(most, op.handles.size()) && op.handles.size() > 1; ++i) {
    forms += (i ? ", " : "") + signature(op, op.handles[i].schema());
  }
  if (!forms.empty()) forms = "; its forms are " + forms;
  if (op.handles.size() > most) forms += ", ...";
  fail("model", "torch.{}: {}{}", op.name, mismatch, forms);
}

int run_op(lua_State* L, Context& context) {
  const auto& op = *static_cast<const Overloads*>(lua_touserdata(L, lua_upvalueindex(1)));
  return call_op(context, L, op, 1, lua_gettop(L));
}

std::string describe_arguments(const Call& call) {
  std::string text;
  for (int i = 0; i < call.count; ++i) {
    text += (i ? ", " : "") + found(call.context, call.L, call.first + i);
  }
  return text;
}

}  // namespace

const Overloads* find_op(std::string_view name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

std::string nearest_op(std::string_view name) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const auto& [op, overloads] : table()) list.push_back(op);
    return list;
  }();
  return did_you_mean(name, names);
}

void push_op(lua_State* L, const Overloads& op) {
  lua_pushlightuserdata(L, const_cast<Overloads*>(&op));
  lua_pushcclosure(L, entry<run_op>, 1);
}

int call_op(Context& context, lua_State* L, const Overloads& op, int first, int count) {
  if (context.phase == Context::Phase::top) {
    fail("model",
         "tensors are made in the functions `model` and `forward`, but torch.{} is called "
         "outside of them",
         op.name);
  }
  const Call call(context, L, first, count);
  Attempt best;
  const auto* chosen = choose(call, op, /*numbers_as_list=*/false, best);
  if (!chosen) chosen = choose(call, op, /*numbers_as_list=*/true, best);
  if (!chosen) refuse(op, best.mismatch);
  auto& stack = best.values;
  try {
    const lua::State::HostTime host(context.state);
    chosen->callBoxed(&stack);
  } catch (const std::exception&) {
    fail("model", "torch.{}({}): {}", op.name, describe_arguments(call),
         tracing::Session::current()->take_error());
  }
  luaL_checkstack(L, static_cast<int>(stack.size()) + 4, "results");
  for (const auto& value : stack) push_result(context, L, value);
  return static_cast<int>(stack.size());
}

}  // namespace perigee::binding
