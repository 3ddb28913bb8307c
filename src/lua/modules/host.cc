// perigee.host: functions of the host for the modules of runtime/perigee.
#include <unistd.h>

#include "base/fail.h"
#include "job/job.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/guard.h"
#include "methods/method.h"

namespace perigee::lua {
namespace {

int suggest(lua_State* L, const Function&) {
  std::vector<std::string> names;
  for (const auto& name : to_json(L, 2, "names")) names.push_back(name.get<std::string>());
  const auto text = did_you_mean(lua_tostring(L, 1), names);
  lua_pushlstring(L, text.data(), text.size());
  return 1;
}

int environment(lua_State* L, const Function&) {
  const std::string prefix = lua_tostring(L, 1);
  if (prefix.size() < 3 || prefix.back() != '_') {
    fail("lua", "a script reads the variables of one system, such as EPL_, but got \"{}\"", prefix);
  }
  auto found = nlohmann::json::object();
  for (char** variable = environ; *variable; ++variable) {
    const std::string_view text = *variable;
    const auto equals = text.find('=');
    if (!text.starts_with(prefix) || equals == std::string_view::npos) continue;
    found[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  push_json(L, found);
  return 1;
}

int place(lua_State* L, const Function&) {
  push_user_line(L);
  return 1;
}

int samplers(lua_State* L, const Function&) {
  push_json(L, job::sampler_names());
  return 1;
}

// The limits of a key of [model] depend on the model's kind, which a dialect does not know.
int check_key(lua_State* L, const Function&) {
  const std::string key = lua_tostring(L, 1);
  std::string wrong;
  if (!key.starts_with("model.")) {
    job::Job job;
    job.model.kind = "gpt";
    try {
      job.set(methods::assignment(key, to_json(L, 2, key)));
    } catch (const Error& error) {
      wrong = error.what();
    }
  }
  for (const std::string_view before : {"[job] ", "--set: "}) {
    if (wrong.starts_with(before)) wrong.erase(0, before.size());
  }
  wrong.empty() ? lua_pushnil(L)
                : static_cast<void>(lua_pushlstring(L, wrong.data(), wrong.size()));
  return 1;
}

int parse_json(lua_State* L, const Function&) {
  const auto value = nlohmann::json::parse(lua_tostring(L, 1), nullptr, false);
  if (value.is_discarded()) fail("lua", "a text must be JSON, but got {}", lua_tostring(L, 1));
  push_json(L, value);
  return 1;
}

}  // namespace

Module host_module() {
  return {"perigee.host",
          "Functions of the host for the dialects of other systems.",
          {{"suggest",
            {{"name", "string", "what a user wrote"}, {"names", "table", "the names that exist"}},
            "string",
            "Returns \", did you mean X?\" for the nearest name, or \"\" where none is near.",
            suggest},
           {"environment",
            {{"prefix", "string", "what their names begin with, such as `EPL_`"}},
            "table",
            "Returns the environment's variables of a system, by name.",
            environment},
           {"place",
            {},
            "string",
            "Returns \"FILE:LINE: \", where the user's script calls into a module of Perigee's.",
            place},
           {"samplers",
            {},
            "table",
            "Returns the names of the built-in orders of samples (data.sampler).",
            samplers},
           {"check_key",
            {{"key", "string", "of a job, `optimizer.lr`"}, {"value", "any", "what it is set to"}},
            "string?",
            "Returns the error of a job's key with this value, nil where it has none. Keys of "
            "`model` are checked when the job is read.",
            check_key},
           {"parse_json",
            {{"text", "string", "JSON"}},
            "any",
            "Returns the text's value; null is nil.",
            parse_json}}};
}

}  // namespace perigee::lua
