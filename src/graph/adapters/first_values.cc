#include <algorithm>
#include <cmath>

#include "graph/adapters/adapters.h"

namespace perigee::graph {

Graph with_first_values(Graph init, const Graph& adapted, const Adapters& adapters) {
  if (init.scopes.empty()) init.scopes = {{"", ""}};
  int64_t key = 0;
  for (const auto& node : init.nodes) {
    if (node.op == "perigee::random") key = std::max(key, node.get<int64_t>("key", -1) + 1);
  }
  const auto add = [&](const std::string& name, std::string op,
                       std::vector<std::pair<std::string, Arg>> args) {
    const auto& type = adapted.type(adapted.find_input(name)->value);
    const auto made = init.add_node(std::move(op), std::move(args), {type});
    init.outputs.push_back({Output::Kind::result, name, made[0]});
  };
  for (const auto& weight : adapters.weights) {
    const auto* input = adapted.find_input(adapter_a(weight));
    if (!input || init.find_output(Output::Kind::result, input->name)) continue;
    // Kaiming's uniform distribution with a = sqrt(5), of `in` inputs.
    const double bound = 1 / std::sqrt(static_cast<double>(adapted.type(input->value).shape[1]));
    add(input->name, "perigee::random",
        {{"kind", std::string("uniform")}, {"key", key++}, {"low", -bound}, {"high", bound}});
    add(adapter_b(weight), "perigee::full", {{"value", 0.0}});
  }
  return init;
}

}  // namespace perigee::graph
