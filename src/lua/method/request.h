// The graph and the request that a script's functions see (perigee.Graph, perigee.Request).
#pragma once

#include <lua.hpp>
#include <nlohmann/json.hpp>

#include "graph/graph.h"
#include "methods/method.h"

namespace perigee::lua {

// Returns {scopes, inputs, parameters, ops, outputs}: perigee.Graph.
nlohmann::json describe_graph(const graph::Graph& graph);

// A request that a script can read. Its graph is described when it is read for the first time.
struct RequestView {
  const graph::Graph* graph = nullptr;  // nullptr once the method's function has returned
};

// Pushes perigee.Request. `job`: the resolved job, null where there is none. Returns the view,
// which stays valid while the table is on the stack.
RequestView* push_request(lua_State* L, const plan::Plan& plan, const methods::PlanRequest& request,
                          const nlohmann::json& job);

}  // namespace perigee::lua
