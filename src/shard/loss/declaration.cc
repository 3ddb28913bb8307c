#include <string>
#include <utility>
#include <vector>

#include "shard/loss/classify_loss.h"
#include "shard/loss/move_nodes.h"

namespace perigee::shard {

using graph::Graph;

namespace {

using Arguments = std::vector<std::pair<std::string, graph::Arg>>;

Graph with_reduction(Graph graph, const Arguments& arguments) {
  for (auto& output : graph.outputs) {
    if (output.kind != graph::Output::Kind::loss) continue;
    const auto self = output.value;
    const auto producer = graph.values[self.index].producer;
    if (producer < 0) continue;
    const auto end = static_cast<graph::NodeId>(graph.nodes.size());
    const auto scope = graph.nodes[producer].scope;
    Arguments all = {{"self", self}};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const auto type = graph.type(self);
    output.value = graph.add_node("perigee::reduction", std::move(all), {type}, scope)[0];
    move_nodes(graph, end, producer);
  }
  return graph;
}

}  // namespace

Graph with_declaration(Graph graph, Declared loss) {
  const std::string kind = loss == Declared::mean  ? "mean"
                           : loss == Declared::sum ? "sum"
                                                   : "weighted";
  return with_reduction(std::move(graph), {{"kind", kind}});
}

Graph with_proof(Graph graph, const LossClass& proof) {
  const std::string kind = proof.kind == LossKind::mean  ? "mean"
                           : proof.kind == LossKind::sum ? "sum"
                                                         : "mixed";
  Arguments arguments = {{"kind", kind}, {"proven", true}};
  if (!proof.ended.empty()) arguments.emplace_back("ended", proof.ended);
  return with_reduction(average_divisors(std::move(graph), proof.divisors), arguments);
}

Graph without_declaration(Graph graph) {
  for (auto& output : graph.outputs) {
    if (output.kind != graph::Output::Kind::loss) continue;
    const auto producer = graph.values[output.value.index].producer;
    if (producer < 0 || graph.nodes[producer].op != "perigee::reduction") continue;
    output.value = std::get<graph::ValueId>(*graph.nodes[producer].find("self"));
  }
  return graph;
}

}  // namespace perigee::shard
