// perigee.mesh: axes over ranks, as `perigee mesh`.
#include "mesh/mesh.h"

#include "lua/api.h"
#include "lua/convert.h"

namespace perigee::lua {
namespace {

mesh::Mesh read_mesh(lua_State* L, int index) {
  const auto value = to_json(L, index, "mesh");
  mesh::Mesh result;
  const auto read_axes = [](const nlohmann::json& list) {
    std::vector<mesh::Axis> axes;
    for (const auto& axis : list) axes.push_back({axis.at(0), axis.at(1)});
    return axes;
  };
  if (value.contains("submeshes")) {
    std::vector<std::vector<mesh::Axis>> submeshes;
    for (const auto& submesh : value["submeshes"]) submeshes.push_back(read_axes(submesh));
    result = mesh::join(submeshes, "pipe");
  } else {
    result.axes = read_axes(value.contains("axes") ? value["axes"] : value);
  }
  if (value.contains("order")) result.order = value["order"].get<std::vector<int64_t>>();
  mesh::verify(result);
  return result;
}

int create(lua_State* L, const Function&) {
  const auto mesh = read_mesh(L, 1);
  nlohmann::json result = {{"axes", nlohmann::json::array()}, {"size", mesh.size()}};
  for (const auto& axis : mesh.axes) result["axes"].push_back({axis.name, axis.size});
  for (const auto& sizes : mesh.stages) {
    auto submesh = nlohmann::json::array();
    for (size_t a = 0; a < sizes.size(); ++a) submesh.push_back({mesh.axes[a].name, sizes[a]});
    result["submeshes"].push_back(std::move(submesh));
  }
  if (!mesh.order.empty()) result["order"] = mesh.order;
  push_json(L, result);
  return 1;
}

int groups(lua_State* L, const Function&) {
  const auto mesh = read_mesh(L, 1);
  const auto axes = mesh::AxisSet::parse(lua_tostring(L, 2));
  push_json(L, nlohmann::json(mesh::groups(mesh, axes)));
  return 1;
}

}  // namespace

Module mesh_module() {
  return {
      "perigee.mesh",
      "Device meshes: named axes over ranks, the first listed varies fastest.",
      {{"new",
        {{"axes", "table",
          "a list of {name, size}, {axes = ..., order = ...}, or {submeshes = {AXES, ...}, order = "
          "...}: one for each position of an axis `pipe`"}},
        "table",
        "Checks a mesh and returns it as {axes, order, size, submeshes}.",
        create},
       {"groups",
        {{"mesh", "table", "what `new` returned"},
         {"axes", "string", "one axis, or several with commas"}},
        "integer[][]",
        "Returns the groups of ranks over the axes.",
        groups}}};
}

}  // namespace perigee::lua
