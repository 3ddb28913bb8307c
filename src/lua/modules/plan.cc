// perigee.Plan: the plan in `apply` of a method that a script defines, and the tables that
// it takes.
#include "plan/plan.h"

#include <fmt/format.h>

#include "base/fail.h"
#include "lua/api.h"
#include "lua/convert.h"
#include "lua/method/place.h"
#include "lua/method/plan_object.h"
#include "lua/method/plan_parts.h"
#include "lua/method/set_parts.h"
#include "lua/state.h"
#include "lua/strategy.h"

namespace perigee::lua {
namespace {

using methods::FieldType;
using nlohmann::json;

AxisPlacement placement_at(lua_State* L, int index) {
  return {.axis = lua_tostring(L, index), .placement = lua_tostring(L, index + 1)};
}

int push_count(lua_State* L, int64_t count) {
  lua_pushinteger(L, static_cast<lua_Integer>(count));
  return 1;
}

// Calls set(plan, request, table) with the only argument.
template <auto set>
int set_part(lua_State* L, const Function& function) {
  const State::HostTime host(State::of(L));
  const auto& edit = edit_of(L);
  const auto given = to_json(L, 1, function.name);
  if constexpr (std::is_void_v<decltype(set(*edit.plan, *edit.request, given))>) {
    set(*edit.plan, *edit.request, given);
    return 0;
  } else {
    return push_count(L, set(*edit.plan, *edit.request, given));
  }
}

int place_value(lua_State* L, const Function&) {
  const auto& edit = edit_of(L);
  return push_count(
      L, place_inputs(*edit.plan, *edit.request, lua_tostring(L, 1), placement_at(L, 2)));
}

int pin(lua_State* L, const Function&) {
  const auto& edit = edit_of(L);
  const auto values = to_json(L, 1, "values");
  methods::check_value({.name = "values", .type = FieldType::names}, values, "plan:pin");
  pin_values(*edit.plan, *edit.request, methods::strings_of(values), placement_at(L, 2));
  return 0;
}

int sent(lua_State* L, const Function&) {
  const auto& edit = edit_of(L);
  return push_count(L,
                    place_sent(*edit.plan, *edit.request, lua_tointeger(L, 1), placement_at(L, 2)));
}

int microbatches(lua_State* L, const Function&) {
  const auto count = lua_tointeger(L, 1);
  if (count < 1) fail("method", "plan:microbatches takes at least 1, but got {}", count);
  edit_of(L).plan->microbatches = count;
  return 0;
}

int batch_axes(lua_State* L, const Function&) {
  set_batch_axes(*edit_of(L).plan, lua_tostring(L, 1));
  return 0;
}

int copies(lua_State* L, const Function&) {
  return push_count(L, set_copies(*edit_of(L).plan, lua_tostring(L, 1)));
}

int average(lua_State* L, const Function&) {
  const auto& edit = edit_of(L);
  return push_count(L, add_average(*edit.plan, *edit.request, lua_tostring(L, 1),
                                   {.axes = mesh::AxisSet::parse(lua_tostring(L, 2)),
                                    .every = lua_tointeger(L, 3),
                                    .states = lua_toboolean(L, 4) != 0}));
}

int scale(lua_State* L, const Function&) {
  auto& plan = *edit_of(L).plan;
  const auto given = to_json(L, 1, "scale");
  if (!given.is_number() && given != "given") {
    fail("method", "plan:scale_loss takes a number or \"given\", but got {}", given.dump());
  }
  scale_loss(plan, given.is_number() ? std::optional(given.get<double>()) : std::nullopt);
  return 0;
}

int use(lua_State* L, const Function&) {
  auto& state = State::of(L);
  const State::HostTime host(state);
  const auto& edit = edit_of(L);
  UsedMethod used{.name = lua_tostring(L, 1)};
  if (!lua_isnoneornil(L, 2)) used.config = to_json(L, 2, used.name);
  define_shipped(state, json::array({used.name}));
  use_method(*edit.plan, *edit.request, used, state.methods);
  return 0;
}

int get(lua_State* L, const Function&) {
  push_json(L, json::parse(plan::print(*edit_of(L).plan)));
  return 1;
}

int note(lua_State* L, const Function&) {
  const auto& edit = edit_of(L);
  edit.plan->decisions.push_back({edit.method, lua_tostring(L, 1)});
  return 0;
}

// Returns the type of a field as LuaCATS has it.
std::string editor_type(FieldType type) {
  switch (type) {
    case FieldType::integers:
      return "integer[]";
    case FieldType::numbers:
      return "number[]";
    case FieldType::strings:
      return "string[]";
    case FieldType::names:
      return "string|string[]";
    case FieldType::list:
      return "any[]";
    default:
      return std::string(methods::name_of(type));
  }
}

Parameter field_of(const methods::ConfigField& field) {
  auto doc = field.doc;
  if (const auto limits = methods::limits_of(field); !limits.empty()) doc += "; " + limits;
  if (!field.default_text.empty()) doc += "; default " + field.default_text;
  return {field.name, editor_type(field.type) + (field.required ? "" : "?"), doc};
}

}  // namespace

const std::vector<Function>& plan_functions() {
  const Parameter axis{"axis", "string", "an axis of the mesh"};
  const Parameter placement{"placement", "string", "R, or S0, S1, ...: sharded on that dim"};
  static const std::vector<Function> functions = {
      {"place",
       {{"match", "string", "a pattern of their names"}, axis, placement},
       "integer",
       "Places the matching parameters and inputs, and returns their number.",
       place_value},
      {"pin",
       {{"values", "any", "a name of graph.ops, or a list of them"}, axis, placement},
       "",
       "Pins activations and other values that ops compute. Other axes are left to propagation.",
       pin},
      {"place_sent",
       {{"part", "integer", "of the pipeline, from 0"}, axis, placement},
       "integer",
       "Pins the activations that a part of the pipeline reads from earlier parts, and returns "
       "their number.",
       sent},
      {"recompute",
       {{"recompute", "perigee.Recompute", "the fields that change"}},
       "integer",
       "Sets activation checkpointing, plan:recompute { \"blocks.*\" }, and returns the number of "
       "regions. Fields that are left out keep their values, here and in the other parts.",
       set_part<set_recompute>},
      {"offload",
       {{"offload", "perigee.Offload", "the fields that change"}},
       "",
       "Sets which tensors are in host memory.",
       set_part<set_offload>},
      {"overlap",
       {{"overlap", "perigee.Overlap", "the fields that change"}},
       "",
       "Sets the overlap of compute and communication.",
       set_part<set_overlap>},
      {"communication",
       {{"communication", "perigee.Communication", "the fields that change"}},
       "",
       "Sets the buckets of gradients and the prefetch of units.",
       set_part<set_communication>},
      {"pipeline",
       {{"pipeline", "perigee.Pipeline", "the fields that change"}},
       "integer",
       "Cuts the model into stages and returns their number; with one the plan has no pipeline.",
       set_part<set_pipeline>},
      {"precision",
       {{"precision", "perigee.Precision", "the fields that change"}},
       "",
       "Sets mixed precision.",
       set_part<set_precision>},
      {"units",
       {{"units", "perigee.Unit[]", "a list"}},
       "integer",
       "Appends units of parameters, and returns the number of all units.",
       set_part<add_units>},
      {"microbatches",
       {{"count", "integer", "at least 1"}},
       "",
       "Sets the microbatches of an optimizer step.",
       microbatches},
      {"batch_axes",
       {{"axes", "string", "of the mesh, such as `data,zero`"}},
       "",
       "Shards the samples over these axes instead of `data`.",
       batch_axes},
      {"copies",
       {{"axes", "string", "of the mesh"}},
       "integer",
       "The ranks of these axes train copies of the model, each on its own samples. Returns the "
       "number of copies.",
       copies},
      {"average",
       {{"match", "string", "a pattern of parameters"},
        {"axes", "string", "of copies"},
        {"every", "integer", "steps"},
        {"states", "boolean?", "whether their optimizer state is averaged, too"}},
       "integer",
       "Averages the matching parameters of the copies at a fixed interval of steps, and returns "
       "the number of parameters.",
       average},
      {"scale_loss",
       {{"scale", "any", "a number, or `given`: by events.loss_scale"}},
       "",
       "Multiplies the loss in the backward pass, and skips non-finite steps.",
       scale},
      {"use",
       {{"name", "string", "a built-in method, a shipped one, or one of the script"},
        {"config", "any?", "as in a strategy"}},
       "",
       "Applies another method, plan:use(\"fsdp\", {}), with its checks and decisions.",
       use},
      {"get",
       {},
       "table",
       "Returns a copy of the plan as it is, with the fields of plan.json (formats/plan.md); those "
       "that have their default may be missing.",
       get},
      {"note",
       {{"sentence", "string", "for `--explain`"}},
       "",
       "Records a decision of the method.",
       note}};
  return functions;
}

Module plan_module() {
  return {.name = "perigee.Plan",
          .doc =
              "The plan that `apply` of a defined method edits. Its functions check their "
              "arguments as the built-in methods do; an error names the line of the call.",
          .functions = plan_functions(),
          .elsewhere = true,
          .is_class = true};
}

std::vector<Module> plan_classes() {
  std::vector<Module> classes;
  for (const auto& part : plan_parts()) {
    Module module{.name = part.name, .doc = part.doc, .elsewhere = true, .is_class = true};
    if (!part.items.empty()) module.fields.push_back({"[integer]", "string", part.items});
    for (const auto& field : *part.fields) module.fields.push_back(field_of(field));
    classes.push_back(std::move(module));
  }
  return classes;
}

}  // namespace perigee::lua
