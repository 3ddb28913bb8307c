#include "methods/names.h"

#include <algorithm>
#include <map>

#include "base/fail.h"
#include "base/text/match.h"
#include "plan/rewrites.h"

namespace perigee::methods {

std::vector<std::string> matching_scopes(const graph::Graph& graph,
                                         const std::vector<std::string>& patterns,
                                         std::string_view method) {
  std::vector<std::string> known;
  for (const auto& scope : graph.scopes) {
    known.push_back(scope.path);
    if (std::find(known.begin(), known.end(), scope.type) == known.end()) {
      known.push_back(scope.type);
    }
  }
  std::vector<std::string> found;
  for (const auto& pattern : patterns) {
    bool any = false;
    for (const auto& scope : graph.scopes) {
      if (!matches(pattern, scope.path) && pattern != scope.type) continue;
      any = true;
      found.push_back(scope.path);
    }
    if (!any) {
      fail(method, "a scope or module type must be one of the model's, but got \"{}\"{}", pattern,
           did_you_mean_pattern(pattern, known));
    }
  }
  std::vector<std::string> outermost;
  for (const auto& scope : graph.scopes) {
    const auto is_found = [&](const std::string& path) {
      return std::find(found.begin(), found.end(), path) != found.end();
    };
    if (!is_found(scope.path)) continue;
    const bool inside = std::any_of(outermost.begin(), outermost.end(), [&](const auto& outer) {
      return graph::contains_scope(outer, scope.path);
    });
    if (!inside) outermost.push_back(scope.path);
  }
  return outermost;
}

namespace {

// Returns the pattern of the row of a numbered module ("blocks.*" for blocks.3); "" for others.
std::string row_pattern(const std::string& path) {
  const auto dot = path.rfind('.');
  const auto last = path.substr(dot == std::string::npos ? 0 : dot + 1);
  const bool number = !last.empty() && std::all_of(last.begin(), last.end(),
                                                   [](char c) { return c >= '0' && c <= '9'; });
  if (!number) return "";
  return dot == std::string::npos ? "*" : path.substr(0, dot) + ".*";
}

}  // namespace

std::vector<std::string> repeated_rows(const graph::Graph& graph) {
  std::map<std::string, std::vector<const graph::Scope*>> members;
  for (const auto& scope : graph.scopes) {
    const auto pattern = row_pattern(scope.path);
    if (!pattern.empty()) members[pattern].push_back(&scope);
  }
  const auto repeats = [](const std::vector<const graph::Scope*>& row) {
    return row.size() > 1 && std::all_of(row.begin(), row.end(), [&](const auto* scope) {
             return scope->type == row.front()->type;
           });
  };
  std::vector<std::string> rows, within;  // scopes of `rows`, outer ones first
  for (const auto& scope : graph.scopes) {
    const auto pattern = row_pattern(scope.path);
    if (pattern.empty() || !repeats(members[pattern])) continue;
    if (std::find(rows.begin(), rows.end(), pattern) == rows.end()) {
      const bool inside = std::any_of(within.begin(), within.end(), [&](const auto& outer) {
        return graph::contains_scope(outer, scope.path);
      });
      if (inside) continue;
      rows.push_back(pattern);
    }
    within.push_back(scope.path);
  }
  if (rows.empty() && !members.empty()) rows = {longest_row(graph)};
  return rows;
}

std::string longest_row(const graph::Graph& graph) {
  std::map<std::string, int> rows;
  for (const auto& scope : graph.scopes) {
    const auto pattern = row_pattern(scope.path);
    if (!pattern.empty()) ++rows[pattern];
  }
  std::string best;
  for (const auto& [pattern, count] : rows) {
    if (best.empty() || count > rows[best]) best = pattern;
  }
  return best;
}

std::vector<std::string> innermost_modules(const graph::Graph& graph) {
  std::vector<std::string> seen;
  for (const auto& node : graph.nodes) {
    if (node.phase != graph::Phase::forward || node.scope.empty()) continue;
    if (std::find(seen.begin(), seen.end(), node.scope) == seen.end()) seen.push_back(node.scope);
  }
  std::vector<std::string> found;
  for (const auto& scope : seen) {
    const bool holds = std::any_of(seen.begin(), seen.end(), [&](const auto& other) {
      return other != scope && graph::contains_scope(scope, other);
    });
    if (!holds) found.push_back(scope);
  }
  return found;
}

std::vector<std::string> named_ops(const graph::Graph& graph, const std::vector<std::string>& given,
                                   std::string_view field, std::string_view method) {
  std::vector<std::string> known;
  for (const auto& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    const auto full = node.op;
    for (const auto& name : {full, full.substr(full.find(':') + 2)}) {
      if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    }
  }
  std::vector<std::string> ops;
  for (const auto& name : given) {
    const auto before = ops.size();
    for (const auto& node : graph.nodes) {
      // "attention" is perigee::attention, "mm" aten::mm, "add" aten::add.Tensor too.
      const auto bare = node.op.substr(node.op.find(':') + 2);
      const bool same = node.op == name || bare == name || bare.substr(0, bare.find('.')) == name;
      if (same && node.phase == graph::Phase::forward &&
          std::find(ops.begin(), ops.end(), node.op) == ops.end()) {
        ops.push_back(node.op);
      }
    }
    if (ops.size() == before) {
      fail(method, "{} must name ops of the forward pass, but got \"{}\"{}", field, name,
           did_you_mean(name, known));
    }
  }
  return ops;
}

std::vector<std::string> named_ops(const plan::Plan& plan, const graph::Graph& graph,
                                   const std::vector<std::string>& given, std::string_view field,
                                   std::string_view method) {
  if (given.empty() || plan.rewrites.empty()) return named_ops(graph, given, field, method);
  return named_ops(plan::apply(plan.rewrites, graph), given, field, method);
}

std::string join(const std::vector<std::string>& list) {
  std::string text;
  for (const auto& item : list) text += (text.empty() ? "" : ", ") + item;
  return text;
}

}  // namespace perigee::methods
