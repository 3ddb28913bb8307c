#include "plan/rewrites.h"

#include <algorithm>

#include "base/fail.h"
#include "graph/rewrite/fusions.h"
#include "plan/data_ops.h"

namespace perigee::plan {

graph::Graph apply(const std::vector<Rewrite>& rewrites, graph::Graph graph,
                   std::vector<graph::Rewritten>* done) {
  if (done) done->assign(rewrites.size(), {});
  for (size_t r = 0; r < rewrites.size(); ++r) {
    const auto& rewrite = rewrites[r];
    graph::Rewritten unused;
    auto& became = done ? (*done)[r] : unused;
    if (!rewrite.pattern.empty() || !rewrite.replacement.empty()) {
      const auto rule = graph::parse_rewrite(rewrite.name, rewrite.pattern, rewrite.replacement);
      check_data_ops(rule.replacement, rewrite.name);
      graph = graph::rewrite(std::move(graph), rule, became, rewrite.within);
      continue;
    }
    const auto names = graph::fusion_names();
    if (std::find(names.begin(), names.end(), rewrite.name) == names.end()) {
      fail("plan", "a rewrite without texts is a built-in one, but got \"{}\"{}", rewrite.name,
           did_you_mean(rewrite.name, names));
    }
    for (const auto& rule : graph::fusions()) {
      if (rule.name != rewrite.name) continue;
      graph = graph::rewrite(std::move(graph), rule, became, rewrite.within);
    }
  }
  return graph;
}

}  // namespace perigee::plan
