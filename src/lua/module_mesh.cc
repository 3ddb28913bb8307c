// perigee.mesh: axes over ranks, as `perigee mesh`.
#include "lua/api.h"
#include "lua/convert.h"
#include "mesh/mesh.h"

namespace perigee::lua {
namespace {

mesh::Mesh read_mesh(lua_State* L, int index) {
  const auto value = to_json(L, index, "mesh");
  mesh::Mesh result;
  const auto& axes = value.contains("axes") ? value["axes"] : value;
  for (const auto& axis : axes) result.axes.push_back({axis.at(0), axis.at(1)});
  if (value.contains("order")) result.order = value["order"].get<std::vector<int64_t>>();
  mesh::verify(result);
  return result;
}

int create(lua_State* L, const Function&) {
  const auto mesh = read_mesh(L, 1);
  nlohmann::json result = {{"axes", nlohmann::json::array()}, {"size", mesh.size()}};
  for (const auto& axis : mesh.axes) result["axes"].push_back({axis.name, axis.size});
  if (!mesh.order.empty()) result["order"] = mesh.order;
  push_json(L, result);
  return 1;
}

int groups(lua_State* L, const Function&) {
  const auto mesh = read_mesh(L, 1);
  const auto axes = mesh::split_axes(lua_tostring(L, 2));
  push_json(L, nlohmann::json(mesh::groups(mesh, axes)));
  return 1;
}

}  // namespace

Module mesh_module() {
  return {"perigee.mesh",
          "Device meshes: named axes over ranks, the first listed varies fastest.",
          {{"new",
            {{"axes", "table", "a list of {name, size}, or {axes = ..., order = ...}"}},
            "table",
            "Checks a mesh and returns it as {axes, order, size}.",
            create},
           {"groups",
            {{"mesh", "table", "what `new` returned"},
             {"axes", "string", "one axis, or several with commas"}},
            "integer[][]",
            "Returns the groups of ranks over the axes.",
            groups}}};
}

}  // namespace perigee::lua
