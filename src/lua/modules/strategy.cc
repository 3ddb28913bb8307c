// perigee.strategy: strategies as files of plain data.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/fail.h"
#include "base/files/durable.h"
#include "base/files/file.h"
#include "base/text/yaml.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/planner.h"
#include "lua/state.h"
#include "methods/method.h"
#include "plan/format.h"
#include "plan/plan.h"

namespace perigee::lua {
namespace {

// Returns the path of a file beside the script with one of these endings. Scripts reach
// no other folder.
std::filesystem::path beside_script(lua_State* L, const char* name,
                                    const std::vector<std::string>& endings = {".json"}) {
  const std::filesystem::path path = name;
  bool inside = path.is_relative() && std::find(endings.begin(), endings.end(),
                                                path.extension().string()) != endings.end();
  for (const auto& part : path) inside = inside && part != "..";
  if (!inside) {
    fail("strategy", "{} is a {} file below the script's folder, but got \"{}\"",
         endings.size() == 1 ? "a saved strategy" : "a list of constraints",
         fmt::join(endings, " or "), name);
  }
  const auto& folder = State::of(L).script_folder();
  return (folder.empty() ? std::filesystem::path(".") : std::filesystem::path(folder)) / path;
}

// Returns the strategy at `index` without its places, which belong to one script.
nlohmann::json strategy_at(lua_State* L, int index, std::string_view what) {
  auto value = to_json(L, index, what);
  if (value.is_object()) value.erase("places");
  return value;
}

// Checks the facts of a search that are saved beside its strategy: `costs` of it, and `plans`, a
// list of {strategy, costs, ...}.
void check_search(const nlohmann::json& search, const std::string& file, const Defined& defined) {
  for (const auto& [key, part] : search.items()) {
    if (key == "costs" && part.is_object()) continue;
    if (key != "plans" || !part.is_array()) {
      fail("strategy",
           "beside a strategy {} can hold costs (a table) and plans (a list of {{strategy, "
           "costs}}), "
           "but got {}",
           file, key);
    }
    for (const auto& plan : part) {
      if (!plan.is_object() || !plan.contains("strategy")) {
        fail("strategy", "each of plans has a strategy, but one of {} has none", file);
      }
      methods::from_json(plan["strategy"], file, defined);
    }
  }
}

int save(lua_State* L, const Function&) {
  const auto path = beside_script(L, lua_tostring(L, 1));
  const auto value = strategy_at(L, 2, "the strategy");
  const bool is_plan = value.is_object() && value.value("format", "") == plan::kFormat;
  if (!is_plan) {  // refuses what load would refuse
    methods::from_json(value, path.string(), State::of(L).methods);
  }
  std::string text;
  if (is_plan) {
    text = plan::print(plan::parse(value.dump(), path.string()));
  } else {
    auto saved = lua_isnoneornil(L, 3) ? nlohmann::json::object() : to_json(L, 3, "the search");
    check_search(saved, path.string(), State::of(L).methods);
    saved["format"] = "perigee.strategy/1";
    saved["strategy"] = value;
    text = saved.dump(2) + "\n";
  }
  std::error_code ignored;  // what cannot be made cannot be written
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), ignored);
  write_durably(path.string(), text);
  return 0;
}

int load(lua_State* L, const Function&) {
  const auto path = beside_script(L, lua_tostring(L, 1));
  std::ifstream file(path);
  if (!file) {
    lua_pushnil(L);
    lua_pushfstring(L, "there is no file %s", path.c_str());
    return 2;
  }
  if (file.peek() == 0x80) {
    fail("strategy", "{} is a pickle, which is Python's: save the strategy from Perigee as JSON",
         path.string());
  }
  const auto value = nlohmann::json::parse(file, nullptr, false);
  const auto told = value.is_object() ? value.value("format", nlohmann::json()) : nlohmann::json();
  const auto format = told.is_string() ? told.get<std::string>() : "";
  if (format.empty() && value.is_object() && value.contains("desc")) {
    fail("strategy",
         "{} is a plan of nnScaler's, which cannot be tied to a graph: it numbers ops as its "
         "process counted them, and has no hash of the graph. Search again, and save that plan",
         path.string());
  }
  const bool holds_strategy = format == "perigee.strategy/1" && value.contains("strategy");
  if (!holds_strategy && format != plan::kFormat) {
    fail("strategy",
         "{} must hold \"format\": \"perigee.strategy/1\" and a strategy, or a plan, but does not",
         path.string());
  }
  if (!holds_strategy) {
    push_json(L, value);
    return 1;
  }
  push_json(L, value["strategy"]);
  nlohmann::json search;
  for (const char* key : {"costs", "plans"}) {
    if (value.contains(key)) search[key] = value[key];
  }
  if (search.is_null()) return 1;
  push_json(L, search);
  return 2;
}

int constraints(lua_State* L, const Function&) {
  const auto path = beside_script(L, lua_tostring(L, 1), {".yaml", ".yml", ".json"});
  if (!std::filesystem::exists(path)) {
    lua_pushnil(L);
    lua_pushfstring(L, "there is no file %s", path.c_str());
    return 2;
  }
  auto yaml = parse_yaml(read_file(path.string(), "strategy"), path.string());
  if (!yaml.value.is_array()) {
    fail("strategy", "{} must hold a list of constraints, but it holds {}", path.string(),
         yaml.value.is_null() ? "nothing" : "something else");
  }
  for (size_t i = 0; i < yaml.value.size(); ++i) {
    if (!yaml.value[i].is_object()) continue;
    const auto line = yaml.lines[fmt::format("/{}", i)];
    yaml.value[i]["place"] = fmt::format("{}:{}", path.filename().string(), line);
  }
  push_json(L, yaml.value);
  return 1;
}

// Returns the strategy with each method as {name, fields}: "fsdp", {"fsdp"} and {"fsdp", {}} are
// the same, and an empty table is an empty list in Lua.
nlohmann::json in_full(nlohmann::json strategy) {
  if (strategy.is_object() && strategy.contains("methods")) {
    strategy["methods"] = in_full(strategy["methods"]);
  }
  if (!strategy.is_array()) return strategy;
  for (auto& method : strategy) {
    if (method.is_string()) method = nlohmann::json::array({method});
    if (!method.is_array() || method.empty()) continue;
    if (method.size() == 1) method.push_back(nlohmann::json::object());
    if (method[1].empty()) method[1] = nlohmann::json::object();
  }
  return strategy;
}

int compare(lua_State* L, const Function&) {
  const auto a = in_full(strategy_at(L, 1, "the first strategy"));
  const auto b = in_full(strategy_at(L, 2, "the second strategy"));
  if (a == b) {
    lua_pushboolean(L, 1);
    return 1;
  }
  std::string differences;
  for (const auto& change : nlohmann::json::diff(a, b)) {
    differences += fmt::format("{}{} {}", differences.empty() ? "" : "; ",
                               change["op"].get<std::string>(), change["path"].get<std::string>());
  }
  lua_pushboolean(L, 0);
  lua_pushlstring(L, differences.data(), differences.size());
  return 2;
}

}  // namespace

Module strategy_module() {
  return {"perigee.strategy",
          "Strategies as files: plain data, readable and the same everywhere.",
          {{"save",
            {{"file", "string", "a .json file below the script's folder"},
             {"strategy", "table", "the strategy"},
             {"search", "table?",
              "facts of its search to save beside it: costs (a table), plans (a list of {strategy, "
              "costs})"}},
            "",
            "Writes the strategy.",
            save},
           {"load",
            {{"file", "string", "a .json file below the script's folder"}},
            "table?, table|string",
            "Returns a saved strategy and the facts of its search that are saved beside it, or a "
            "plan as a table, or nil and the reason why there is none.",
            load},
           {"constraints",
            {{"file", "string", "a .yaml or .json file below the script's folder"}},
            "table?, string?",
            "Returns the list of a file of constraints, for the method partition_constraints, or "
            "nil and the reason why there is none.",
            constraints},
           {"compare",
            {{"a", "table", "a strategy"}, {"b", "table", "a strategy"}},
            "boolean, string?",
            "Returns true where both are the same, else false and their differences.",
            compare}}};
}

}  // namespace perigee::lua
