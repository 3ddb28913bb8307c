#include "train/generate/decode_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "train/step/token_input.h"

namespace perigee::train {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::Output;
using graph::ValueId;

namespace {

constexpr const char* kAttention = "perigee::attention";
constexpr std::string_view kCache = "cache.";

}  // namespace

bool is_cache(std::string_view buffer) { return buffer.starts_with(kCache); }

std::string obstacle_to_caches(const Graph& graph) {
  for (const char* name : {"tokens", "positions"}) {
    if (!reads_input(graph, name)) return fmt::format("does not read the input \"{}\"", name);
  }
  if (!graph.find_output(Output::Kind::result, "logits")) return "has no result \"logits\"";
  bool attends = false;
  for (const auto& node : graph.nodes) {
    if (node.op == "perigee::expert_slots") {
      // [g, t, k]: an expert has at most every token of a group once.
      const auto tokens = graph.type(node.get<ValueId>("expert", {})).shape.at(1);
      if (node.get<bool>("dropless", false) || node.get<int64_t>("places", 0) >= tokens) continue;
      return fmt::format("limits the tokens of its experts ({})", node.scope);
    }
    if (node.op != kAttention) continue;
    attends = true;
    const auto* bias = node.find("bias");
    const auto* value = bias ? std::get_if<ValueId>(bias) : nullptr;
    if (value && value->defined()) {
      return fmt::format("adds numbers to the scores of its attention ({})", node.scope);
    }
    if (!node.get<bool>("causal", false)) {
      return fmt::format("has attention to later tokens ({})", node.scope);
    }
  }
  return attends ? "" : "has no attention";
}

Graph with_caches(Graph graph, const CacheShape& shape) {
  if (const auto obstacle = obstacle_to_caches(graph); !obstacle.empty()) {
    fail("generate", "a cache of keys and values is not possible: the model {}", obstacle);
  }
  std::erase_if(graph.outputs, [](const Output& output) {
    return output.kind != Output::Kind::result || output.name != "logits";
  });
  const auto tokens = graph.type(graph.find_input("tokens")->value);
  const auto places = graph.add_input(Input::Kind::data, "places", tokens);
  const auto slots = graph.add_input(Input::Kind::data, "slots",
                                     {graph::DType::int64, {tokens.shape[0]}});
  std::map<std::string, int> counts;  // of attention nodes, by scope
  for (auto& node : graph.nodes) {
    if (node.op != kAttention) continue;
    const auto number = counts[node.scope]++;
    const auto cache = [&](const char* operand) {
      auto type = graph.type(node.get<ValueId>(operand, {}));
      type.shape[0] = shape.slots;
      type.shape[2] = shape.context + 1;
      return graph.add_input(Input::Kind::buffer,
                             fmt::format("{}{}.{}.{}", kCache, node.scope, number, operand), type);
    };
    std::vector<std::pair<std::string, graph::Arg>> args;
    for (const char* operand : {"query", "key", "value"}) {
      args.emplace_back(operand, node.get<ValueId>(operand, {}));
    }
    args.emplace_back("positions", places);
    args.emplace_back("slots", slots);
    args.emplace_back("key_cache", cache("key"));
    args.emplace_back("value_cache", cache("value"));
    args.emplace_back("scale", *node.find("scale"));
    if (const auto window = shape.windows.find(node.scope); window != shape.windows.end()) {
      args.emplace_back("window", window->second);
    }
    node.op = "perigee::cached_attention";
    node.args = std::move(args);
    for (size_t result = 1; result < node.outputs.size(); ++result) {
      graph.values[node.outputs[result].index].producer = -1;
    }
    node.outputs.resize(1);
  }
  for (const auto& [scope, window] : shape.windows) {
    if (!counts.contains(scope)) fail("generate", "a window needs attention in {}", scope);
  }
  return graph::renumber(graph::eliminate_dead_code(std::move(graph)));
}

}  // namespace perigee::train
