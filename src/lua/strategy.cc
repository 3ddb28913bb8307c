#include "lua/strategy.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "base/fail.h"
#include "lua/convert.h"
#include "lua/method/request.h"
#include "lua/places.h"
#include "lua/sandbox/sandbox.h"
#include "methods/placed.h"

namespace perigee::lua {
namespace {

// Returns the keys that a strategy sets, each with its place: that of places["set.KEY"], or that of
// the script.
std::vector<job::Assignment> assignments_of(const methods::StrategySpec& strategy,
                                            const nlohmann::json& data, const std::string& path) {
  std::vector<job::Assignment> list;
  const auto places = data.is_object() ? data.value("places", nlohmann::json::object())
                                       : nlohmann::json::object();
  for (const auto& text : strategy.set) {
    const auto place = places.value("set." + text.substr(0, text.find('=')), "");
    list.push_back({text, place.empty() ? path + ": " : place});
  }
  return list;
}

}  // namespace

StrategyScript::StrategyScript(const std::string& path, Options options)
    : path_(path), state_(std::move(options)) {
  state_.run_file(path);
  result_place_ = state_.result_place;
  check_result();
}

StrategyScript::StrategyScript(const job::Dialect& dialect, Options options)
    : path_(dialect.file), state_(std::move(options)) {
  lua_State* L = state_.raw();
  state_.run_text(fmt::format("return require(\"perigee.{}\").from_job", dialect.name), path_);
  push_json(L, nlohmann::json::parse(to_json(dialect)));
  push_json(L, dialect.places);
  state_.call(2);
  check_result();
}

void StrategyScript::check_result() {
  lua_State* L = state_.raw();  // the result stays at index 1
  function_ = lua_isfunction(L, 1);
  if (!function_ && !lua_istable(L, 1)) {
    fail("strategy", "a script returns a list of methods, a table or a function, but {} returns {}",
         path_, lua_isnil(L, 1) ? "nothing" : luaL_typename(L, 1));
  }
  if (function_) return;
  methods::at_place(place(), [&] {
    require_list(1);
    take_events(1);
    take_around(1);
  });
  lua_pushliteral(L, "methods");
  lua_rawget(L, 1);
  function_ = lua_isfunction(L, 2);
  if (function_) {
    lua_pushliteral(L, "methods");
    lua_pushnil(L);
    lua_rawset(L, 1);
    rest_ = to_json(L, 1, path_ + "'s strategy");
    lua_remove(L, 1);
  } else {
    lua_settop(L, 1);
  }
  // Errors show before anything is captured.
  const auto data = function_ ? nlohmann::json::object() : to_json(L, 1, path_ + "'s strategy");
  const auto strategy = function_ ? read(data) : read(data, places_of(1));
  set_ = assignments_of(strategy, function_ ? rest_ : data, path_);
  if (strategy.job) {
    job_ = (std::filesystem::path(path_).parent_path() / *strategy.job).lexically_normal().string();
  }
}

std::string StrategyScript::place() const {
  return result_place_.empty() ? path_ + ": " : result_place_;
}

void StrategyScript::require_list(int index) {
  lua_State* L = state_.raw();
  const int top = lua_gettop(L);
  lua_pushvalue(L, index);
  lua_pushliteral(L, "methods");
  lua_rawget(L, index);
  for (; lua_gettop(L) > top; lua_pop(L, 1)) {
    const auto place = kept_place(L);
    if (place.empty()) continue;
    lua_rawgeti(L, -1, 1);
    const auto name = describe(L, -1);
    lua_settop(L, top);
    methods::at_place(place, [&] {
      fail("strategy",
           "a strategy is a list of methods, but this is the method {} alone: {{m.{} ...}}", name,
           name);
    });
  }
}

void StrategyScript::take_events(int index) {
  lua_State* L = state_.raw();
  lua_pushliteral(L, "events");
  lua_rawget(L, index);
  if (lua_isnil(L, -1)) return lua_pop(L, 1);
  static const std::vector<std::string> known = {"step", "loss_scale"};
  if (!lua_istable(L, -1)) {
    fail("strategy",
         "events are a table of functions, {{step = function(report) ... end}}, but got {}",
         luaL_typename(L, -1));
  }
  const int table = lua_gettop(L);
  lua_pushnil(L);
  while (lua_next(L, table) != 0) {
    const auto name = describe(L, -2);
    if (std::ranges::find(known, name) == known.end()) {
      fail("strategy", "events are {}, but got \"{}\"{}", fmt::join(known, ", "), name,
           did_you_mean(name, known));
    }
    if (!lua_isfunction(L, -1)) {
      fail("strategy", "the event {} is a function, but got {}", name, luaL_typename(L, -1));
    }
    if (events_.contains(name)) luaL_unref(L, LUA_REGISTRYINDEX, events_[name]);
    events_[name] = luaL_ref(L, LUA_REGISTRYINDEX);
  }
  lua_pop(L, 1);
  lua_pushliteral(L, "events");
  lua_pushnil(L);
  lua_rawset(L, index);
}

void StrategyScript::take_around(int index) {
  lua_State* L = state_.raw();
  lua_pushliteral(L, "around");
  lua_rawget(L, index);
  if (lua_isnil(L, -1)) return lua_pop(L, 1);
  bool functions = lua_istable(L, -1);
  if (functions) {
    const int table = lua_gettop(L);
    lua_pushnil(L);
    while (lua_next(L, table) != 0) {
      const auto name = describe(L, -2);
      functions = functions && lua_isfunction(L, -1) && (name == "loss" || name == "prepare");
      lua_pop(L, 1);
    }
  }
  if (!functions) {
    fail("strategy", "around is {{loss = function, prepare = function}}, one of them or both");
  }
  lua_pop(L, 1);
  lua_pushliteral(L, "around");
  lua_pushnil(L);
  lua_rawset(L, index);
  around_ = fmt::format("model.around={}", nlohmann::json(path_).dump());
}

bool StrategyScript::observes(const std::string& event) const { return events_.contains(event); }

void StrategyScript::notify(const std::string& event, const nlohmann::json& report) {
  const auto found = events_.find(event);
  if (found == events_.end()) return;
  lua_State* L = state_.raw();
  const int top = lua_gettop(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, found->second);
  push_json(L, report);
  state_.call(1);
  lua_settop(L, top);
}

double StrategyScript::ask(const std::string& event, int64_t step) {
  const auto found = events_.find(event);
  if (found == events_.end()) {
    fail("strategy", "the plan needs events = {{{} = function(step) ... end}}, but {} has none",
         event, path_);
  }
  lua_State* L = state_.raw();
  const int top = lua_gettop(L);
  lua_rawgeti(L, LUA_REGISTRYINDEX, found->second);
  lua_pushinteger(L, step);
  state_.call(1);
  const bool number = lua_type(L, -1) == LUA_TNUMBER;
  const auto answer = number ? lua_tonumber(L, -1) : 0;
  const std::string got = number ? "" : luaL_typename(L, -1);
  lua_settop(L, top);
  if (!number)
    fail("strategy", "the event {} must return a number, but {} got {}", event, path_, got);
  return answer;
}

std::vector<std::string> StrategyScript::places_of(int index) {
  lua_State* L = state_.raw();
  const int top = lua_gettop(L);
  lua_pushvalue(L, index);
  lua_pushliteral(L, "methods");
  lua_rawget(L, index);
  if (!lua_istable(L, -1)) lua_pop(L, 1);
  std::vector<std::string> places(lua_objlen(L, -1));
  for (size_t i = 0; i < places.size(); ++i) {
    lua_rawgeti(L, -1, static_cast<int>(i) + 1);
    places[i] = kept_place(L);
    lua_pop(L, 1);
  }
  lua_settop(L, top);
  if (!rest_.is_object() || !rest_.contains("places")) {
    lua_pushliteral(L, "places");
    lua_rawget(L, index);
    const bool by_method = !lua_isnil(L, -1);
    lua_pop(L, 1);
    for (auto& place : places) {
      if (place.empty() && !by_method) place = result_place_;
    }
  }
  return places;
}

methods::StrategySpec StrategyScript::read(nlohmann::json value,
                                           const std::vector<std::string>& places) {
  methods::StrategySpec strategy;
  if (value.is_object() && value.contains("format")) {
    if (!rest_.is_null()) strategy = methods::from_json(rest_, path_, state_.methods);
    strategy.name = path_;
    strategy.plan = plan::parse(value.dump(), path_);
    strategy.rules = state_.rules;
    return strategy;
  }
  if (!rest_.is_null()) {
    auto whole = rest_;
    if (value.is_array()) value = {{"methods", std::move(value)}};
    whole.update(value);
    value = std::move(whole);
  }
  define_shipped(state_, value);
  strategy = methods::at_place(
      place(), [&] { return methods::from_json(value, path_, state_.methods, places); });
  if (!around_.empty()) strategy.set.push_back(around_);
  strategy.rules = state_.rules;
  return strategy;
}

methods::StrategySpec StrategyScript::resolve(const nlohmann::json& job, const graph::Graph& graph,
                                              Planner* planner) {
  lua_State* L = state_.raw();
  state_.job = std::make_shared<const nlohmann::json>(job);
  if (!function_) return read(to_json(L, 1, path_ + "'s strategy"), places_of(1));
  struct Lent {
    State& state;
    ~Lent() { state.planner = nullptr; }
  } lent{state_};
  state_.planner = planner;
  lua_settop(L, 1);
  result_place_ = result_place(L, 1);
  lua_pushvalue(L, 1);
  push_json(L, job);
  push_json(L, describe_graph(graph));
  state_.call(2);
  if (lua_isnil(L, -1) && !state_.infeasible.empty()) {
    throw Error(Status::infeasible, "strategy",
                fmt::format("{} returned nothing: {}", path_, state_.infeasible));
  }
  if (!lua_istable(L, -1)) {
    fail("strategy",
         "a strategy function returns a list of methods, a table or a plan, but {} returned {}",
         path_, lua_isnil(L, -1) ? "nothing" : luaL_typename(L, -1));
  }
  methods::at_place(place(), [&] {
    require_list(lua_gettop(L));
    take_events(lua_gettop(L));
  });
  lua_getfield(L, lua_gettop(L), "around");
  if (!lua_isnil(L, -1)) {
    fail("strategy",
         "functions around the model are captured with it: {} returns them before, not from a "
         "strategy function",
         path_);
  }
  lua_pop(L, 1);
  const int result = lua_gettop(L);
  auto strategy = read(to_json(L, result, path_ + "'s strategy"), places_of(result));
  lua_settop(L, 1);
  return strategy;
}

std::map<std::string, std::string> scripts_in(const std::string& folder) {
  std::map<std::string, std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder, ignored)) {
    const auto& path = entry.path();
    const bool published = path.parent_path().filename() == "published";
    if (path.extension() == ".lua" && !published) found[path.stem().string()] = path.string();
  }
  return found;
}

void define_shipped(State& state, const nlohmann::json& strategy) {
  const auto folder = std::filesystem::path(state.options().runtime_folder).parent_path() /
                      "strategies";
  const auto* list = strategy.is_object() && strategy.contains("methods") ? &strategy["methods"]
                                                                          : &strategy;
  if (state.options().runtime_folder.empty() || !list->is_array()) return;
  const auto shipped = scripts_in(folder.string());
  const auto known = [](const auto& methods, const std::string& name) {
    return std::any_of(methods.begin(), methods.end(),
                       [&](const auto& method) { return method->name() == name; });
  };
  for (const auto& item : *list) {
    const auto& first = item.is_array() && !item.empty() ? item[0] : item;
    if (!first.is_string()) continue;
    const std::string name = first;
    const bool plain = std::all_of(name.begin(), name.end(),
                                   [](unsigned char c) { return std::isalnum(c) || c == '_'; });
    if (!plain || known(methods::all(), name) || known(state.methods, name)) continue;
    const auto file = shipped.find(name);
    if (file == shipped.end()) continue;
    const int top = lua_gettop(state.raw());
    state.defines_shipped = true;
    state.run_file(file->second);
    state.defines_shipped = false;
    lua_settop(state.raw(), top);
  }
}

}  // namespace perigee::lua
