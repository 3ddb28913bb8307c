#include "graph/rewrite/fusions.h"

#include <algorithm>

#include "graph/rewrite/sketch.h"

namespace perigee::graph {

const std::vector<RewriteRule>& fusions() {
  static const auto rules = [] {
    std::vector<RewriteRule> all;
    add_attention_fusions(all);
    add_loss_fusions(all);
    add_norm_fusions(all);
    add_rotary_fusions(all);
    add_swiglu_fusions(all);
    return all;
  }();
  return rules;
}

std::vector<std::string> fusion_names() {
  std::vector<std::string> names;
  for (const auto& rule : fusions()) {
    if (std::find(names.begin(), names.end(), rule.name) == names.end()) names.push_back(rule.name);
  }
  return names;
}

}  // namespace perigee::graph
