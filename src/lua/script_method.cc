#include "lua/script_method.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/fail.h"
#include "base/text/match.h"
#include "lua/convert.h"
#include "lua/guard.h"
#include "lua/state.h"
#include "methods/placed.h"
#include "plan/pipeline.h"

namespace perigee::lua {
namespace {

using methods::Config;
using methods::ConfigField;
using methods::Json;
using methods::PlanCost;
using methods::PlanRequest;

// State of the plan handle during `apply`; the handle is void once apply has returned.
struct Edit {
  plan::Plan* plan = nullptr;
  const PlanRequest* request = nullptr;
  std::string method;
};

Edit& edit_of(lua_State* L) {
  auto* edit = static_cast<Edit*>(lua_touserdata(L, lua_upvalueindex(1)));
  if (!edit->plan) fail("lua", "a plan can be edited inside apply only, but apply has returned");
  return *edit;
}

std::string check_text(lua_State* L, int index, const char* what) {
  if (lua_type(L, index) != LUA_TSTRING) {
    fail("lua", "{} must be a string, but got {}", what, luaL_typename(L, index));
  }
  return lua_tostring(L, index);
}

// plan:place(match, axis, placement): places the matching parameters and inputs on the axis.
// Returns their number.
int place(lua_State* L) {
  return guarded(L, [&] {
    auto& edit = edit_of(L);
    const auto pattern = check_text(L, 2, "plan:place's match");
    const auto axis = check_text(L, 3, "plan:place's axis");
    const auto placement = mesh::parse_placements(check_text(L, 4, "plan:place's placement"));
    const int at = edit.plan->mesh.find(axis);
    if (at < 0 || placement.size() != 1) {
      std::vector<std::string> axes;
      for (const auto& known : edit.plan->mesh.axes) axes.push_back(known.name);
      fail("lua",
           "plan:place takes an axis of the mesh and one placement, but got \"{}\", \"{}\"{}", axis,
           check_text(L, 4, "placement"), did_you_mean(axis, axes));
    }
    int count = 0;
    std::vector<std::string> names;
    for (const auto& input : edit.request->graph->inputs) {
      names.push_back(input.name);
      if (!matches(pattern, input.name)) continue;
      auto& placements = edit.plan->placements[input.name];
      placements.resize(edit.plan->mesh.axes.size());
      placements[at] = placement.front();
      ++count;
    }
    if (count == 0) {
      fail("lua", "plan:place needs a match, but \"{}\" matches no parameter or input{}", pattern,
           did_you_mean(pattern, names));
    }
    lua_pushinteger(L, count);
    return 1;
  });
}

// plan:place_sent(part, axis, placement): places the activations of earlier parts that this part of
// the pipeline (from 0) reads. Returns the number of values.
int place_sent(lua_State* L) {
  return guarded(L, [&] {
    auto& edit = edit_of(L);
    auto& plan = *edit.plan;
    const auto& graph = *edit.request->graph;
    const auto part = lua_tointeger(L, 2);
    const auto axis = check_text(L, 3, "plan:place_sent's axis");
    const auto text = check_text(L, 4, "plan:place_sent's placement");
    const auto placement = mesh::parse_placements(text);
    const int at = plan.mesh.find(axis);
    const auto parts = std::ssize(plan.pipeline.starts) + 1;
    if (lua_type(L, 2) != LUA_TNUMBER || part < 1 || part >= parts) {
      fail("lua",
           "plan:place_sent takes a part of the pipeline after the first, below {}, but got {}",
           parts, lua_type(L, 2) == LUA_TNUMBER ? std::to_string(part) : luaL_typename(L, 2));
    }
    if (at < 0 || placement.size() != 1 || placement[0].is_partial()) {
      std::vector<std::string> axes;
      for (const auto& known : plan.mesh.axes) axes.push_back(known.name);
      fail("lua",
           "plan:place_sent takes an axis of the mesh and R or S0, S1, ..., but got \"{}\", "
           "\"{}\"{}",
           axis, text, did_you_mean(axis, axes));
    }
    const auto part_of = plan::parts_of(graph, plan.pipeline);
    const auto names = graph::value_names(graph);
    std::set<int32_t> sent;
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      const auto& node = graph.nodes[n];
      if (node.phase != graph::Phase::forward || part_of[n] != part) continue;
      node.each_operand([&](graph::ValueId v) {
        const auto producer = graph.values[v.index].producer;
        if (producer < 0 || part_of[producer] == plan::kEveryPart || part_of[producer] >= part)
          return;
        if (graph::is_floating(graph.type(v).dtype)) sent.insert(v.index);
      });
    }
    for (const auto v : sent) {
      auto& placements = plan.placements[names[v]];
      placements.resize(plan.mesh.axes.size(), mesh::Placement::open());
      placements[at] = placement.front();
    }
    lua_pushinteger(L, std::ssize(sent));
    return 1;
  });
}

int set_microbatches(lua_State* L) {
  return guarded(L, [&] {
    auto& edit = edit_of(L);
    const auto count = lua_tointeger(L, 2);
    if (lua_type(L, 2) != LUA_TNUMBER || count < 1) {
      fail("lua", "plan:microbatches takes a count of at least 1, but got {}",
           lua_isnumber(L, 2) ? std::to_string(count) : luaL_typename(L, 2));
    }
    edit.plan->microbatches = count;
    return 0;
  });
}

// plan:copies(axes): the ranks of these axes train copies of the model; the batch of each
// is its own.
int copies(lua_State* L) {
  return guarded(L, [&] {
    auto& plan = *edit_of(L).plan;
    const auto axes = mesh::AxisSet::parse(check_text(L, 2, "plan:copies' axes"));
    std::vector<std::string> known;
    for (const auto& axis : plan.mesh.axes) known.push_back(axis.name);
    for (const auto& axis : axes) {
      if (plan.mesh.find(axis) < 0) {
        fail("lua", "plan:copies takes axes of the mesh, but got \"{}\"{}", axis,
             did_you_mean(axis, known));
      }
    }
    plan.batch_axes = plan.batch_axes.without(axes);
    plan.copy_axes = axes;
    lua_pushinteger(L, plan::copies_of(plan));
    return 1;
  });
}

// plan:average(match, axes, every, states): matching parameters are averaged over these axes of
// copies every so many steps. Returns their number.
int average(lua_State* L) {
  return guarded(L, [&] {
    auto& edit = edit_of(L);
    const auto pattern = check_text(L, 2, "plan:average's match");
    plan::Average average{mesh::AxisSet::parse(check_text(L, 3, "plan:average's axes"))};
    if (lua_type(L, 4) != LUA_TNUMBER || lua_tonumber(L, 4) != lua_tointeger(L, 4)) {
      fail("lua", "plan:average's every must be a number of steps, but got {}",
           luaL_typename(L, 4));
    }
    average.every = lua_tointeger(L, 4);
    average.states = lua_toboolean(L, 5) != 0;
    std::vector<std::string> names;
    for (const auto& input : edit.request->graph->inputs) {
      if (input.kind != graph::Input::Kind::parameter) continue;
      names.push_back(input.name);
      if (matches(pattern, input.name)) average.parameters.push_back(input.name);
    }
    const auto count = std::ssize(average.parameters);
    if (count == 0) {
      fail("lua", "plan:average needs a match, but \"{}\" matches no parameter{}", pattern,
           did_you_mean(pattern, names));
    }
    edit.plan->averages.push_back(std::move(average));
    lua_pushinteger(L, count);
    return 1;
  });
}

// plan:scale_loss(scale): the loss is multiplied by the scale, or by the "given" scale of each step,
// for the backward pass.
int scale_loss(lua_State* L) {
  return guarded(L, [&] {
    auto& precision = edit_of(L).plan->precision;
    using Kind = plan::LossScale::Kind;
    if (precision.loss_scale.kind != Kind::none) {
      fail("lua", "plan:scale_loss needs a loss that nothing else scales, but its scale is {}",
           name_of(precision.loss_scale.kind));
    }
    const bool number = lua_type(L, 2) == LUA_TNUMBER;
    if (!number && check_text(L, 2, "plan:scale_loss's scale") != "given") {
      fail("lua", "plan:scale_loss takes a number or \"given\", but got \"{}\"",
           lua_tostring(L, 2));
    }
    precision.loss_scale = {.kind = number ? Kind::fixed : Kind::given,
                            .init_scale = number ? lua_tonumber(L, 2) : 1};
    precision.skip_nonfinite = true;
    return 0;
  });
}

int note(lua_State* L) {
  return guarded(L, [&] {
    auto& edit = edit_of(L);
    edit.plan->decisions.push_back({edit.method, check_text(L, 2, "plan:note's sentence")});
    return 0;
  });
}

// Pushes the plan's handle; returns the Edit, which stays valid while the handle is on the stack.
Edit* push_handle(lua_State* L) {
  lua_newtable(L);
  auto* edit = new (lua_newuserdata(L, sizeof(Edit))) Edit;
  lua_createtable(L, 0, 1);  // runs ~Edit
  lua_pushcfunction(L, [](lua_State* state) {
    static_cast<Edit*>(lua_touserdata(state, 1))->~Edit();
    return 0;
  });
  lua_setfield(L, -2, "__gc");
  lua_setmetatable(L, -2);
  const luaL_Reg functions[] = {{"place", place},
                                {"place_sent", place_sent},
                                {"scale_loss", scale_loss},
                                {"microbatches", set_microbatches},
                                {"copies", copies},
                                {"average", average},
                                {"note", note}};
  for (const auto& [name, function] : functions) {
    lua_pushvalue(L, -1);
    lua_pushcclosure(L, function, 1);
    lua_setfield(L, -3, name);
  }
  lua_pop(L, 1);
  return edit;
}

Json describe_request(const plan::Plan& plan, const PlanRequest& request) {
  Json mesh = Json::array();
  for (const auto& axis : plan.mesh.axes) mesh.push_back({axis.name, axis.size});
  return {{"global_batch", request.global_batch}, {"world", request.world}, {"mesh", mesh}};
}

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
    const int top = lua_gettop(L);
    make_room(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, table_);
    lua_getfield(L, -1, "cost");
    if (lua_isnil(L, -1)) {
      lua_settop(L, top);
      return std::nullopt;
    }
    push_json(L, config_of(given));
    push_json(L, describe_request(plan, request));
    push_json(L, describe_taken(with));
    push_json(L, without ? describe_taken(*without) : Json());
    state_.call(4);
    const auto said = to_json(L, lua_gettop(L), fmt::format("what {}'s cost returns", name_));
    lua_settop(L, top);
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
  void apply_at(plan::Plan& plan, const Config& given, const PlanRequest& request) const {
    const auto config = config_of(given);
    const auto about = describe_request(plan, request);
    lua_State* L = state_.raw();
    const int top = lua_gettop(L);
    make_room(L);
    lua_rawgeti(L, LUA_REGISTRYINDEX, table_);
    lua_getfield(L, -1, "check");
    if (lua_isfunction(L, -1)) {
      push_json(L, config);
      push_json(L, about);
      state_.call(2);
    }
    lua_settop(L, top);
    Edit* edit = push_handle(L);
    *edit = {&plan, &request, name_};
    lua_rawgeti(L, LUA_REGISTRYINDEX, table_);
    lua_getfield(L, -1, "apply");
    lua_remove(L, -2);
    lua_pushvalue(L, top + 1);
    push_json(L, config);
    push_json(L, about);
    try {
      state_.call(3);
    } catch (...) {
      edit->plan = nullptr;
      lua_settop(L, top);
      throw;
    }
    edit->plan = nullptr;
    lua_settop(L, top);
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
};

// Reads `fields`: name = type, or name = {type = ..., doc = ..., required = ..., default = ...}.
std::vector<ConfigField> read_fields(const Json& value, Json& defaults) {
  using methods::FieldType;
  constexpr FieldType kTypes[] = {FieldType::boolean, FieldType::integer, FieldType::number,
                                  FieldType::string,  FieldType::list,    FieldType::table,
                                  FieldType::any};
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
