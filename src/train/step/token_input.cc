#include "train/step/token_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/fail.h"

namespace perigee::train {
namespace {

const graph::Input* tokens_of(const graph::Graph& graph) {
  const auto* tokens = graph.find_input("tokens");
  return tokens && !graph::is_floating(graph.type(tokens->value).dtype) ? tokens : nullptr;
}

}  // namespace

int64_t tokens_of_sample(const graph::Graph& graph) {
  const auto* tokens = tokens_of(graph);
  if (!tokens) return 0;
  const auto& shape = graph.type(tokens->value).shape;
  if (shape.size() < 2) return 0;
  return std::accumulate(shape.begin() + 1, shape.end(), int64_t{1}, std::multiplies<>());
}

data::IdLimit id_limit(const graph::Graph& graph) {
  data::IdLimit limit;
  const auto* tokens = tokens_of(graph);
  if (!tokens) return limit;
  for (const auto& node : graph.nodes) {
    if (node.op != "aten::embedding") continue;
    if (node.get<graph::ValueId>("indices", {}) != tokens->value) continue;
    const auto table = node.get<graph::ValueId>("weight", {});
    for (const auto& input : graph.inputs) {
      const auto rows = input.value == table ? graph.type(table).shape.at(0) : 0;
      if (rows == 0 || (limit.below > 0 && rows >= limit.below)) continue;
      limit = {rows, fmt::format("the rows of parameter {}", input.name)};
    }
  }
  return limit;
}

bool reads_input(const graph::Graph& graph, std::string_view name) {
  const auto* input = graph.find_input(name);
  if (!input || input->kind != graph::Input::Kind::data) return false;
  return std::ranges::any_of(graph.nodes, [&](const graph::Node& node) {
    bool reads = false;
    node.each_operand([&](graph::ValueId operand) { reads = reads || operand == input->value; });
    return reads;
  });
}

void require_document_inputs(const job::Job& job, const graph::Graph& graph) {
  if (job.data.pack != "documents" || reads_input(graph, "documents")) return;
  fail("data",
       "data.pack = \"documents\" packs documents into samples whose tokens must not attend to "
       "those of another, but the model (model.kind = \"{}\") does not read the input "
       "\"documents\": set data.pack = \"stream\" or \"none\"",
       job.model.kind);
}

}  // namespace perigee::train
