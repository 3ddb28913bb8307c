#include "binding/model.h"

#include <torch/nn/module.h>

#include <map>

#include "base/fail.h"
#include "binding/context.h"
#include "binding/modules.h"
#include "capture/device/dtype.h"
#include "lua/convert.h"

namespace perigee::binding {
namespace {

using nlohmann::json;

// A script that has run. Its table, its options, the job and the built module are on the stack of
// its state, in that order.
class Script {
 public:
  explicit Script(const LuaModelSettings& settings)
      : context_(settings.lua),
        file_(settings.file),
        type_(tracing::scalar_type(
            *graph::dtype_of(settings.job["model"]["dtype"].get<std::string>()))),
        by_order_(settings.job["model"].value("unpack", "dict") == "sequence") {
    context_.state.run_file(file_);
    check_table();
    lua::push_json(L(), options(settings.job));
    lua::push_json(L(), settings.job);
  }

  std::vector<BatchField> batch() {
    lua_getfield(L(), kTable, "batch");
    if (lua_isnil(L(), -1)) return lua_settop(L(), kJob), std::vector<BatchField>();
    if (lua_isfunction(L(), -1)) {
      lua_pushvalue(L(), kOptions);
      lua_pushvalue(L(), kJob);
      context_.state.call(2);
    }
    const auto fields = lua::to_json(L(), lua_gettop(L()), "batch");
    lua_settop(L(), kJob);
    if (!fields.is_object() || fields.empty()) wrong("`batch` gives a table of fields by name");
    std::vector<BatchField> batch;
    for (const auto& [name, field] : fields.items()) batch.push_back(read_field(name, field));
    return batch;
  }

  std::shared_ptr<torch::nn::Module> build() {
    std::shared_ptr<LuaModule> net;
    tracing::construct_deferred([&]() -> std::shared_ptr<torch::nn::Module> {
      const Running running(context_, Context::Phase::model, type_);
      lua_getfield(L(), kTable, "model");
      lua_pushvalue(L(), kOptions);
      lua_pushvalue(L(), kJob);
      context_.state.call(2);
      net = module_at(context_, L(), kNet);
      return net;
    });
    if (!net) {
      wrong(fmt::format("`model` returns a module, but it returned {}", luaL_typename(L(), kNet)));
    }
    return net;
  }

  Result forward(const Batch& batch) {
    const Running running(context_, Context::Phase::forward, type_);
    lua_settop(L(), kNet);
    lua_getfield(L(), kTable, "forward");
    const bool own = !lua_isnil(L(), -1);
    if (!own) lua_pop(L(), 1);
    lua_pushvalue(L(), kNet);
    // Options precede fields that are passed one by one, of which the last may be missing.
    if (own && by_order_) lua_pushvalue(L(), kOptions);
    const int fields = push_fields(batch);
    if (own && !by_order_) lua_pushvalue(L(), kOptions);
    context_.state.call(fields + (own ? 2 : 0));
    auto result = read_result();
    lua_settop(L(), kNet);
    return result;
  }

 private:
  static constexpr int kTable = 1, kOptions = 2, kJob = 3, kNet = 4;

  lua_State* L() const { return context_.state.raw(); }

  [[noreturn]] void wrong(const std::string& text) const { fail("model", "{}: {}", file_, text); }

  // Pushes the batch, a table by name, or its fields one by one. Returns how many arguments it is.
  int push_fields(const Batch& batch) {
    if (by_order_) {
      const auto count = batch.size();
      luaL_checkstack(L(), static_cast<int>(count) + 4, "fields of a batch");
      for (size_t i = 0; i < count; ++i) context_.tensors.push(L(), batch.at(field_name(i)));
      return static_cast<int>(count);
    }
    lua_createtable(L(), 0, static_cast<int>(batch.size()));
    for (const auto& [name, tensor] : batch) {
      context_.tensors.push(L(), tensor);
      lua_setfield(L(), -2, name.c_str());
    }
    return 1;
  }

  void check_table() const {
    static const std::map<std::string, bool> fields = {
        {"options", false}, {"batch", false}, {"model", true}, {"forward", false}};
    if (!lua_istable(L(), kTable)) {
      wrong(fmt::format("a model's script returns a table with `model`, but this returns {}",
                        lua_isnil(L(), kTable) ? "nothing" : luaL_typename(L(), kTable)));
    }
    std::vector<std::string> names;
    for (const auto& [name, needed] : fields) names.push_back(name);
    lua_pushnil(L());
    while (lua_next(L(), kTable)) {
      const std::string name = lua_type(L(), -2) == LUA_TSTRING ? lua_tostring(L(), -2) : "1";
      if (!fields.contains(name)) {
        wrong(
            fmt::format("a model's script returns options, batch, model and forward, but got "
                        "\"{}\"{}",
                        name, did_you_mean(name, names)));
      }
      const bool table = name == "options" || name == "batch";
      const bool function = name != "options";
      if (!(table && lua_istable(L(), -1)) && !(function && lua_isfunction(L(), -1))) {
        wrong(fmt::format("`{}` is a {}, but got a {}", name, function ? "function" : "table",
                          luaL_typename(L(), -1)));
      }
      lua_pop(L(), 1);
    }
    lua_getfield(L(), kTable, "model");
    if (lua_isnil(L(), -1)) wrong("a model's script returns a table with `model`, but got none");
    lua_pop(L(), 1);
  }

  // Returns the script's defaults, overridden by [model.options]. Without defaults, any options
  // are accepted.
  json options(const json& job) const {
    const auto given = job["model"].value("options", json::object());
    lua_getfield(L(), kTable, "options");
    if (lua_isnil(L(), -1)) {
      lua_pop(L(), 1);
      return given;
    }
    auto options = lua::to_json(L(), lua_gettop(L()), "options");
    lua_pop(L(), 1);
    std::vector<std::string> names;
    for (const auto& [name, value] : options.items()) names.push_back(name);
    for (const auto& [name, value] : given.items()) {
      if (!options.contains(name)) {
        fail("job", "{} has no option \"{}\"{}", file_, name, did_you_mean(name, names));
      }
      auto& fallback = options[name];
      if (fallback.type() != value.type() && !(fallback.is_number() && value.is_number()) &&
          !(fallback.empty() && value.is_array())) {
        fail("job", "model.options.{} of {} is a {}, but got {}", name, file_, fallback.type_name(),
             value.dump());
      }
      fallback = value;
    }
    return options;
  }

  BatchField read_field(const std::string& name, const json& field) const {
    static const std::vector<std::string> keys = {"shape", "dtype", "classes", "shift"};
    if (!field.is_object()) wrong(fmt::format("batch.{} is a table with `shape`", name));
    for (const auto& [key, value] : field.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        wrong(fmt::format("batch.{} has no \"{}\"{}", name, key, did_you_mean(key, keys)));
      }
    }
    BatchField out;
    out.name = name;
    const auto integer = [&](const json& value, int64_t least) {
      if (!value.is_number_integer() || value.get<int64_t>() < least) {
        wrong(fmt::format("batch.{} holds whole numbers of at least {}, but got {}", name, least,
                          value.dump()));
      }
      return value.get<int64_t>();
    };
    for (const auto& size : field.value("shape", json::array())) {
      out.shape.push_back(integer(size, 1));
    }
    out.classes = integer(field.value("classes", json(0)), 0);
    out.shift = integer(field.value("shift", json(0)), 0);
    const auto fallback = out.classes > 0 ? "int64"
                                          : std::string(graph::name_of(tracing::dtype_of(type_)));
    const auto dtype = graph::dtype_of(field.value("dtype", fallback));
    if (!dtype)
      wrong(fmt::format("batch.{}.dtype is no dtype, but {}", name, field["dtype"].dump()));
    out.dtype = *dtype;
    return out;
  }

  Result read_result() const {
    Result result;
    const int index = lua_gettop(L());
    if (const auto* tensor = context_.tensors.get(L(), index)) {
      (tensor->dim() == 0 ? result.loss : result.results["output"]) = *tensor;
      return result;
    }
    if (!lua_istable(L(), index)) {
      wrong(fmt::format("`forward` returns a table of tensors with `loss`, but it returned {}",
                        lua_isnil(L(), index) ? "nothing" : luaL_typename(L(), index)));
    }
    lua_pushnil(L());
    while (lua_next(L(), index)) {
      const auto* tensor = context_.tensors.get(L(), lua_gettop(L()));
      if (lua_type(L(), -2) != LUA_TSTRING || !tensor) {
        wrong(fmt::format("`forward` returns tensors by name, but got a {} under {}",
                          luaL_typename(L(), -1),
                          lua_type(L(), -2) == LUA_TSTRING ? lua_tostring(L(), -2) : "a number"));
      }
      const std::string name = lua_tostring(L(), -2);
      (name == "loss" ? result.loss : result.results[name]) = *tensor;
      lua_pop(L(), 1);
    }
    return result;
  }

  mutable Context context_;
  std::string file_;
  at::ScalarType type_;
  bool by_order_;  // model.unpack
};

}  // namespace

BuiltInModel load_lua(const LuaModelSettings& settings) {
  auto script = std::make_shared<Script>(settings);
  BuiltInModel model;
  model.batch = script->batch();
  model.model.module = script->build();
  model.model.forward = [script](const Batch& batch) { return script->forward(batch); };
  return model;
}

std::vector<BatchField> lua_batch(const LuaModelSettings& settings) {
  return Script(settings).batch();
}

}  // namespace perigee::binding
