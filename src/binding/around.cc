#include "binding/around.h"

#include <algorithm>
#include <memory>

#include "base/fail.h"
#include "binding/context.h"
#include "capture/device/dtype.h"

namespace perigee::binding {
namespace {

// A script that has run. Its table of functions is on the stack of its state.
class Functions {
 public:
  Functions(std::set<std::string> fields, const LuaModelSettings& settings)
      : context_(settings.lua),
        file_(settings.file),
        fields_(std::move(fields)),
        type_(tracing::scalar_type(
            *graph::dtype_of(settings.job["model"]["dtype"].get<std::string>()))),
        by_order_(settings.job["model"].value("unpack", "dict") == "sequence") {
    context_.state.run_file(file_);
    if (lua_istable(L(), kTable)) {
      lua_pushliteral(L(), "around");
      lua_rawget(L(), kTable);
      lua_istable(L(), -1) ? lua_replace(L(), kTable) : lua_pop(L(), 1);
    }
    check_table();
  }

  Batch prepare(const Batch& batch) {
    if (!push_function("prepare")) return batch;
    const Running running(context_, Context::Phase::forward, type_);
    push(batch);
    context_.state.call(1);
    const auto prepared = table_of_tensors("prepare");
    lua_settop(L(), kTable);
    if (prepared.empty()) wrong("`prepare` returns a table of tensors by name, but it is empty");
    return prepared;
  }

  // Replaces the model's own loss.
  void add_loss(const Batch& batch, Result& result) {
    const bool whole = std::all_of(fields_.begin(), fields_.end(),
                                   [&](const auto& name) { return batch.contains(name); });
    if (!push_function("loss")) return;
    result.loss = at::Tensor();
    if (!whole) return lua_settop(L(), kTable);
    if (result.results.empty()) {
      wrong("`loss` gets the model's results other than its own loss, but there are none");
    }
    const Running running(context_, Context::Phase::forward, type_);
    push(batch);
    if (result.results.size() == 1) {
      context_.tensors.push(L(), result.results.begin()->second);
    } else {
      push(result.results);
    }
    context_.state.call(2);
    if (lua_istable(L(), -1)) lua_rawgeti(L(), -1, 1);
    const auto* loss = context_.tensors.get(L(), lua_gettop(L()));
    if (!loss) wrong(fmt::format("`loss` returns a tensor, but it returned {}", type_at_top()));
    if (loss->dim() != 0) {
      wrong(fmt::format("`loss` returns a scalar, but it returned {}", describe(*loss)));
    }
    result.loss = *loss;
    lua_settop(L(), kTable);
  }

 private:
  static constexpr int kTable = 1;

  lua_State* L() const { return context_.state.raw(); }
  [[noreturn]] void wrong(const std::string& text) const { fail("model", "{}: {}", file_, text); }

  std::string type_at_top() const {
    return lua_isnil(L(), -1) ? "nothing" : fmt::format("a {}", luaL_typename(L(), -1));
  }

  void check_table() const {
    static const std::vector<std::string> known = {"loss", "prepare"};
    bool any = false;
    if (lua_istable(L(), kTable)) {
      lua_pushnil(L());
      while (lua_next(L(), kTable)) {
        const std::string name = lua_type(L(), -2) == LUA_TSTRING ? lua_tostring(L(), -2) : "1";
        if (std::find(known.begin(), known.end(), name) == known.end()) {
          wrong(fmt::format("functions around a model are loss and prepare, but got \"{}\"{}", name,
                            did_you_mean(name, known)));
        }
        if (!lua_isfunction(L(), -1)) {
          wrong(fmt::format("`{}` is a function, but got {}", name, type_at_top()));
        }
        any = true;
        lua_pop(L(), 1);
      }
    }
    if (!any) wrong("a script around a model returns {loss = function, prepare = function}");
  }

  bool push_function(const char* name) {
    lua_getfield(L(), kTable, name);
    if (!lua_isnil(L(), -1)) return true;
    lua_pop(L(), 1);
    return false;
  }

  void push(const std::map<std::string, at::Tensor>& tensors) {
    lua_createtable(L(), 0, static_cast<int>(tensors.size()));
    for (const auto& [name, tensor] : tensors) {
      context_.tensors.push(L(), tensor);
      lua_setfield(L(), -2, name.c_str());
    }
    for (size_t i = 0; by_order_ && tensors.contains(field_name(i)); ++i) {
      context_.tensors.push(L(), tensors.at(field_name(i)));
      lua_rawseti(L(), -2, static_cast<int>(i) + 1);
    }
  }

  Batch table_of_tensors(const char* function) {
    const int index = lua_gettop(L());
    if (!lua_istable(L(), index)) {
      wrong(fmt::format("`{}` returns a table of tensors by name, but it returned {}", function,
                        type_at_top()));
    }
    Batch tensors;
    const auto items = static_cast<int>(lua_objlen(L(), index));
    if (items > 0 && !by_order_) {
      wrong(fmt::format(
          "`{}` returns tensors by name; a list is for model.unpack = \"sequence\", which binds "
          "fields by their order",
          function));
    }
    for (int i = 1; i <= items; ++i) {
      lua_rawgeti(L(), index, i);
      const auto* tensor = context_.tensors.get(L(), lua_gettop(L()));
      if (!tensor) {
        wrong(fmt::format("item {} of the result of `{}` must be a tensor, but is {}", i, function,
                          type_at_top()));
      }
      tensors[field_name(static_cast<size_t>(i) - 1)] = *tensor;
      lua_pop(L(), 1);
    }
    if (items > 0) return tensors;
    lua_pushnil(L());
    while (lua_next(L(), index)) {
      const auto* tensor = context_.tensors.get(L(), lua_gettop(L()));
      if (lua_type(L(), -2) != LUA_TSTRING || !tensor) {
        wrong(fmt::format("`{}` returns tensors by name, but one is {}", function, type_at_top()));
      }
      tensors[lua_tostring(L(), -2)] = *tensor;
      lua_pop(L(), 1);
    }
    return tensors;
  }

  mutable Context context_;
  std::string file_;
  std::set<std::string> fields_;
  at::ScalarType type_;
  bool by_order_;  // model.unpack
};

}  // namespace

Forward around(Forward forward, std::set<std::string> fields, const LuaModelSettings& settings) {
  auto functions = std::make_shared<Functions>(std::move(fields), settings);
  return [forward = std::move(forward), functions](const Batch& batch) {
    const auto prepared = functions->prepare(batch);
    auto result = forward(prepared);
    // The fields that `prepare` leaves out are still the loss function's.
    auto seen = batch;
    for (const auto& [name, tensor] : prepared) seen.insert_or_assign(name, tensor);
    functions->add_loss(seen, result);
    return result;
  };
}

}  // namespace perigee::binding
