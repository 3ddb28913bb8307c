#include "lua/method/script_method.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/fail.h"
#include "lua/convert.h"
#include "lua/method/plan_object.h"
#include "lua/method/request.h"
#include "lua/state.h"
#include "methods/placed.h"

namespace perigee::lua {
namespace {

using methods::Config;
using methods::ConfigField;
using methods::Json;
using methods::PlanCost;
using methods::PlanRequest;

// The host may call from deep within a script.
void make_room(lua_State* L) {
  if (lua_checkstack(L, LUA_MINSTACK) == 0) fail("lua", "the script's calls are nested too deep");
}

Json describe_taken(const PlanCost& taken) {
  return {{"seconds", taken.seconds}, {"bytes", taken.peak_bytes}};
}

class ScriptMethod : public methods::Method {
 public:
  // Takes the definition table on top of the stack.
  ScriptMethod(State& state, std::string name, std::string doc, std::vector<ConfigField> fields,
               Json defaults)
      : state_(state),
        name_(std::move(name)),
        doc_(std::move(doc)),
        fields_(std::move(fields)),
        defaults_(std::move(defaults)),
        shipped_(state.defines_shipped),
        table_(luaL_ref(state.raw(), LUA_REGISTRYINDEX)) {}

  std::string_view name() const override { return name_; }
  std::string_view doc() const override { return doc_; }
  const std::vector<ConfigField>& fields() const override { return fields_; }

  std::optional<PlanCost> cost(const plan::Plan& plan, const Config& given,
                               const PlanRequest& request, const PlanCost& with,
                               const std::optional<PlanCost>& without) const override {
    lua_State* L = state_.raw();
    make_room(L);
    const Views views(*this, plan, request);
    push_function("cost");
    if (lua_isnil(L, -1)) return std::nullopt;
    push_json(L, config_of(given));
    lua_pushvalue(L, views.request_at);
    push_json(L, describe_taken(with));
    push_json(L, without ? describe_taken(*without) : Json());
    state_.call(4);
    const auto said = to_json(L, lua_gettop(L), fmt::format("what {}'s cost returns", name_));
    return read_cost(said, with, without);
  }

  void apply(plan::Plan& plan, const Config& given, const PlanRequest& request) const override {
    struct Lent {
      State& state;
      std::string outer;
      ~Lent() { state.place = std::move(outer); }
    } lent{state_, std::exchange(state_.place, given.place)};
    try {
      apply_at(plan, given, request);
    } catch (const Error& error) {
      if (given.place.empty()) throw;
      if (shipped_) throw methods::PlacedError(methods::place_of(given, error.what()), error);
      throw methods::PlacedError(error);  // at a line of its own, or at that of the state
    }
  }

 private:
  // The request on the stack. When a function of the method returns, the request's graph and the
  // plan's object are void, and the stack has its former height.
  struct Views {
    Views(const ScriptMethod& method, const plan::Plan& plan, const PlanRequest& request)
        : L(method.state_.raw()), top(lua_gettop(L)) {
      const auto& job = method.state_.job;
      view = push_request(L, plan, request, job ? *job : Json());
      request_at = lua_gettop(L);
    }
    ~Views() {
      view->graph = nullptr;
      if (edit) edit->plan = nullptr;
      lua_settop(L, top);
    }
    Views(const Views&) = delete;
    Views& operator=(const Views&) = delete;

    lua_State* L;
    int top, request_at = 0;
    RequestView* view = nullptr;
    PlanEdit* edit = nullptr;
  };

  // Pushes a function of the definition, or nil.
  void push_function(const char* name) const {
    lua_State* L = state_.raw();
    lua_rawgeti(L, LUA_REGISTRYINDEX, table_);
    lua_getfield(L, -1, name);
    lua_remove(L, -2);
  }

  void apply_at(plan::Plan& plan, const Config& given, const PlanRequest& request) const {
    if (applies_) fail("method", "a method may not use itself, but {} does", name_);
    struct Applies {
      bool& flag;
      ~Applies() { flag = false; }
    } applies{applies_};
    applies_ = true;
    const auto config = config_of(given);
    lua_State* L = state_.raw();
    make_room(L);
    Views views(*this, plan, request);
    push_function("check");
    if (lua_isfunction(L, -1)) {
      push_json(L, config);
      lua_pushvalue(L, views.request_at);
      state_.call(2);
    }
    lua_settop(L, views.request_at);
    views.edit = push_plan(L);
    views.edit->plan = &plan;
    views.edit->request = &request;
    views.edit->method = name_;
    const int object = lua_gettop(L);
    push_function("apply");
    lua_pushvalue(L, object);
    push_json(L, config);
    lua_pushvalue(L, views.request_at);
    state_.call(3);
  }

  Json config_of(const Config& given) const {
    auto config = defaults_;
    config.update(given.fields);
    return config;
  }

  PlanCost read_cost(const Json& said, const PlanCost& with,
                     const std::optional<PlanCost>& without) const {
    if (!said.is_object()) {
      fail("lua", "{}'s cost must return a table of seconds and bytes, but got {}", name_,
           said.dump());
    }
    const std::vector<std::string> keys = {"seconds", "bytes"};
    for (const auto& [key, value] : said.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end() || !value.is_number()) {
        fail("lua", "{}'s cost must return numbers seconds and bytes, but got {} = {}{}", name_,
             key, value.dump(), did_you_mean(key, keys));
      }
    }
    const auto read = [&](const std::string& key, double PlanCost::*part) {
      if (said.contains(key)) return said[key].get<double>();
      if (without) return with.*part - (*without).*part;
      fail("lua",
           "{}'s cost must return seconds and bytes where there is no plan without it, but {} is "
           "missing",
           name_, key);
    };
    return {read("seconds", &PlanCost::seconds), read("bytes", &PlanCost::peak_bytes)};
  }

  State& state_;
  std::string name_, doc_;
  std::vector<ConfigField> fields_;
  Json defaults_;
  bool shipped_;
  int table_;
  mutable bool applies_ = false;  // while the script's function runs
};

// Reads `fields`: name = type, or name = {type = ..., doc = ..., required = ..., default = ...}.
std::vector<ConfigField> read_fields(const Json& value, Json& defaults) {
  using methods::FieldType;
  constexpr std::array kTypes = {FieldType::boolean, FieldType::integer, FieldType::number,
                                 FieldType::string,  FieldType::list,    FieldType::integers,
                                 FieldType::numbers, FieldType::strings, FieldType::names,
                                 FieldType::table,   FieldType::any};
  std::vector<std::string> types;
  for (const auto type : kTypes) types.emplace_back(methods::name_of(type));
  std::vector<ConfigField> fields;
  for (const auto& [name, item] : value.items()) {
    ConfigField field{.name = name};
    std::string type = "any";
    if (item.is_string()) {
      type = item;
    } else {
      for (const auto& [key, part] : item.items()) {
        if (key == "type") {
          type = part.get<std::string>();
        } else if (key == "doc") {
          field.doc = part.get<std::string>();
        } else if (key == "required") {
          field.required = part.get<bool>();
        } else if (key == "default") {
          defaults[name] = part;
          field.default_text = part.is_string() ? '`' + part.get<std::string>() + '`' : part.dump();
        } else {
          const std::vector<std::string> keys = {"type", "doc", "required", "default"};
          fail("lua", "define: field {} has type, doc, required and default, but got \"{}\"{}",
               name, key, did_you_mean(key, keys));
        }
      }
    }
    const auto known = std::find(types.begin(), types.end(), type);
    if (known == types.end()) {
      fail("lua", "define: field {} has an unknown type \"{}\"{}", name, type,
           did_you_mean(type, types));
    }
    field.type = kTypes[known - types.begin()];
    fields.push_back(std::move(field));
  }
  return fields;
}

}  // namespace

const methods::Method* define_method(lua_State* L, int index) {
  auto& state = State::of(L);
  const std::vector<std::string> keys = {"name", "doc", "fields", "check", "apply", "cost"};
  const int top = lua_gettop(L);
  for (lua_pushnil(L); lua_next(L, index) != 0; lua_pop(L, 1)) {
    const std::string key = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "[a number]";
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
      lua_settop(L, top);
      fail("lua", "define takes name, doc, fields, check, apply and cost, but got \"{}\"{}", key,
           did_you_mean(key, keys));
    }
  }
  const auto text = [&](const char* key) -> std::string {
    lua_getfield(L, index, key);
    std::string result = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : "";
    lua_pop(L, 1);
    return result;
  };
  const auto name = text("name");
  if (name.empty()) fail("lua", "define: name must be a string, but there is none");
  for (const auto& known : methods::all()) {
    if (known->name() == name)
      fail("lua", "define: {} is a built-in method; take another name", name);
  }
  for (const auto& known : state.methods) {
    if (known->name() == name)
      fail("lua", "define: {} is already defined; take another name", name);
  }
  lua_getfield(L, index, "apply");
  if (!lua_isfunction(L, -1))
    fail("lua", "define: {} needs a function apply(plan, config, request)", name);
  lua_pop(L, 1);
  lua_getfield(L, index, "cost");
  if (!lua_isnil(L, -1) && !lua_isfunction(L, -1)) {
    fail("lua", "define: {}'s cost must be a function (config, request, with, without), but got {}",
         name, luaL_typename(L, -1));
  }
  lua_pop(L, 1);
  Json defaults = Json::object();
  lua_getfield(L, index, "fields");
  const auto fields = lua_isnil(L, -1)
                          ? std::vector<ConfigField>()
                          : read_fields(to_json(L, lua_gettop(L), "define: fields"), defaults);
  lua_pop(L, 1);
  const auto doc = text("doc");
  lua_pushvalue(L, index);
  state.methods.push_back(std::make_shared<ScriptMethod>(state, name, doc, fields, defaults));
  return state.methods.back().get();
}

}  // namespace perigee::lua
