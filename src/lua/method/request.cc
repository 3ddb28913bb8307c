#include "lua/method/request.h"

#include <new>
#include <string>
#include <vector>

#include "base/fail.h"
#include "graph/flops.h"
#include "lua/convert.h"
#include "lua/guard.h"

namespace perigee::lua {
namespace {

using nlohmann::json;

json describe(const graph::TensorType& type) {
  return {{"shape", type.shape}, {"dtype", graph::name_of(type.dtype)}, {"bytes", type.bytes()}};
}

// Returns the op, described by its first result that other ops can read.
json describe(const graph::Graph& graph, const graph::Node& node,
              const std::vector<std::string>& names) {
  json inputs = json::array(), outputs = json::array();
  json op;
  node.each_operand([&](graph::ValueId v) { inputs.push_back(names[v.index]); });
  for (const auto v : node.outputs) {
    if (!v.defined()) continue;
    if (outputs.empty()) op = describe(graph.type(v));
    outputs.push_back(names[v.index]);
  }
  if (outputs.empty()) return {};
  op["name"] = outputs.front();
  op["op"] = node.op;
  op["scope"] = node.scope;
  op["backward"] = node.phase == graph::Phase::backward;
  op["flops"] = graph::flops_of(graph, node);
  op["inputs"] = std::move(inputs);
  op["outputs"] = std::move(outputs);
  return op;
}

// Upvalue: the view.
int read_graph(lua_State* L) {
  return guarded(L, [&] {
    if (lua_type(L, 2) != LUA_TSTRING || std::string_view(lua_tostring(L, 2)) != "graph") {
      lua_pushnil(L);
      return 1;
    }
    const auto* view = static_cast<RequestView*>(lua_touserdata(L, lua_upvalueindex(1)));
    if (!view->graph) {
      fail("method",
           "request.graph can be read while a method's function runs, but it has returned");
    }
    push_json(L, describe_graph(*view->graph));
    lua_pushvalue(L, 2);
    lua_pushvalue(L, -2);
    lua_rawset(L, 1);
    return 1;
  });
}

}  // namespace

json describe_graph(const graph::Graph& graph) {
  const auto names = graph::value_names(graph);
  json result = {{"scopes", json::array()},
                 {"inputs", json::array()},
                 {"parameters", json::array()},
                 {"ops", json::array()},
                 {"outputs", json::array()}};
  for (const auto& scope : graph.scopes) {
    result["scopes"].push_back({{"path", scope.path}, {"type", scope.type}});
  }
  for (const auto& input : graph.inputs) {
    auto item = describe(graph.type(input.value));
    item["name"] = input.name;
    if (input.kind == graph::Input::Kind::parameter) {
      item["trainable"] = input.trainable;
      result["parameters"].push_back(std::move(item));
    } else {
      item["kind"] = graph::name_of(input.kind);
      result["inputs"].push_back(std::move(item));
    }
  }
  for (const auto& node : graph.nodes) {
    auto op = describe(graph, node, names);
    if (!op.is_null()) result["ops"].push_back(std::move(op));
  }
  for (const auto& output : graph.outputs) {
    if (!output.value.defined()) continue;
    result["outputs"].push_back({{"kind", graph::name_of(output.kind)},
                                 {"name", output.name},
                                 {"value", names[output.value.index]}});
  }
  return result;
}

RequestView* push_request(lua_State* L, const plan::Plan& plan, const methods::PlanRequest& request,
                          const json& job) {
  json mesh = json::array();
  for (const auto& axis : plan.mesh.axes) mesh.push_back({axis.name, axis.size});
  push_json(L, {{"global_batch", request.global_batch},
                {"micro_batch", request.micro_batch},
                {"world", request.world},
                {"mesh", std::move(mesh)},
                {"frozen", request.frozen},
                {"job", job}});
  lua_createtable(L, 0, 1);
  auto* view = new (lua_newuserdata(L, sizeof(RequestView))) RequestView{request.graph};
  lua_pushcclosure(L, read_graph, 1);
  lua_setfield(L, -2, "__index");
  lua_setmetatable(L, -2);
  return view;
}

}  // namespace perigee::lua
