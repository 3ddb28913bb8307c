// perigee.strategy: strategies as files of plain data.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/state.h"
#include "methods/method.h"

namespace perigee::lua {
namespace {

// Returns the path of a strategy file beside the script. Scripts reach no other folder.
std::filesystem::path beside_script(lua_State* L, const char* name) {
  const std::filesystem::path path = name;
  bool inside = path.is_relative() && path.extension() == ".json";
  for (const auto& part : path) inside = inside && part != "..";
  if (!inside) {
    fail("strategy", "a saved strategy is a .json file below the script's folder, but got \"{}\"",
         name);
  }
  const auto& folder = State::of(L).script_folder();
  return (folder.empty() ? std::filesystem::path(".") : std::filesystem::path(folder)) / path;
}

int save(lua_State* L, const Function&) {
  const auto path = beside_script(L, lua_tostring(L, 1));
  const auto value = to_json(L, 2, "the strategy");
  methods::from_json(value, path.string(), State::of(L).methods);  // refuses what load would refuse
  const auto partial = path.string() + ".partial";
  std::ofstream file(partial);
  file << nlohmann::json{{"format", "perigee.strategy/1"}, {"strategy", value}}.dump(2) << '\n';
  file.close();
  if (!file) fail("strategy", "a strategy must be written, but {} cannot be", path.string());
  std::filesystem::rename(partial, path);
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
  const auto value = nlohmann::json::parse(file, nullptr, false);
  const auto format = value.is_object() ? value.value("format", "") : "";
  if (format != "perigee.strategy/1" && format != "perigee.plan/1") {
    fail("strategy", "{} must hold \"format\": \"perigee.strategy/1\" or a plan, but it does not",
         path.string());
  }
  push_json(L, format == "perigee.plan/1" ? value : value["strategy"]);
  return 1;
}

int compare(lua_State* L, const Function&) {
  const auto a = to_json(L, 1, "the first strategy");
  const auto b = to_json(L, 2, "the second strategy");
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
             {"strategy", "table", "the strategy"}},
            "",
            "Writes the strategy.",
            save},
           {"load",
            {{"file", "string", "a .json file below the script's folder"}},
            "table?, string?",
            "Returns a saved strategy, or a plan as a table, or nil and why there is none.",
            load},
           {"compare",
            {{"a", "table", "a strategy"}, {"b", "table", "a strategy"}},
            "boolean, string?",
            "Returns true when both are the same, else false and where they differ.",
            compare}}};
}

}  // namespace perigee::lua
