// Parses and checks a rewrite rule.
#include <algorithm>
#include <set>

#include "base/fail.h"
#include "graph/rewrite/match.h"
#include "graph/rewrite/rewrite.h"

namespace perigee::graph {
namespace {

void check_rule(const RewriteRule& rule) {
  const auto inputs = [](const Graph& graph) {
    std::set<std::string> names;
    for (const auto& input : graph.inputs) names.insert(input.name);
    return names;
  };
  const auto outputs = [](const Graph& graph) {
    std::set<std::pair<Output::Kind, std::string>> names;
    for (const auto& output : graph.outputs) names.emplace(output.kind, output.name);
    return names;
  };
  if (inputs(rule.pattern) != inputs(rule.replacement) ||
      outputs(rule.pattern) != outputs(rule.replacement)) {
    fail("rewrite",
         "pattern and replacement have the same inputs and outputs, but those of {} "
         "have not",
         rule.name);
  }
  const Output* first = nullptr;
  for (const auto& output : rule.pattern.outputs) {
    const bool known = output.kind == Output::Kind::result || output.kind == Output::Kind::gradient;
    if (!known || !output.value.defined() || rule.pattern.values[output.value.index].producer < 0) {
      fail("rewrite",
           "outputs of a pattern are results and gradients that its ops make, but {} "
           "has another, \"{}\"",
           rule.name, output.name);
    }
    if (output.kind == Output::Kind::result && !first) first = &output;
  }
  if (!first) fail("rewrite", "a pattern has a result, but that of {} has none", rule.name);
  const auto needed = producers_of(rule.pattern, {first->value}, Phase::forward);
  const auto forward = std::count_if(rule.pattern.nodes.begin(), rule.pattern.nodes.end(),
                                     [](const Node& n) { return n.phase == Phase::forward; });
  if (static_cast<int64_t>(needed.size()) != forward) {
    fail("rewrite",
         "the first result of a pattern needs all its forward ops, but that of {}, "
         "\"{}\", needs {} of {}",
         rule.name, first->name, needed.size(), forward);
  }
}

}  // namespace

RewriteRule parse_rewrite(std::string name, std::string_view pattern,
                          std::string_view replacement) {
  RewriteRule rule{.name = std::move(name)};
  const auto read = [&](std::string_view text, const char* what) {
    try {
      auto graph = parse(text);
      if (graph.scopes.empty()) graph.scopes.push_back({"", ""});
      verify(graph);
      return graph;
    } catch (const Error& error) {
      fail("rewrite", "the {} of {} is a graph in text form, but got: {}", what, rule.name,
           error.what());
    }
  };
  rule.pattern = read(pattern, "pattern");
  rule.replacement = read(replacement, "replacement");
  check_rule(rule);
  return rule;
}

}  // namespace perigee::graph
