#include "capture/record/scopes.h"

#include <algorithm>

namespace perigee::tracing {
namespace {

std::string parent_path(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

}  // namespace

std::string type_name(const torch::nn::Module& module) {
  std::string name = module.name();
  if (const auto colons = name.rfind("::"); colons != name.npos) name = name.substr(colons + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

void Scopes::declare(const torch::nn::Module& root) {
  scopes_[0].type = type_name(root);
  modules_[&root] = 0;
  const auto children = [&](auto&& self, const torch::nn::Module& module,
                            const std::string& prefix) -> void {
    for (const auto& child : module.named_children()) {
      const auto path = prefix.empty() ? child.key() : prefix + "." + child.key();
      modules_.try_emplace(child.value().get(), add(path, type_name(*child.value())));
      self(self, *child.value(), path);
    }
  };
  children(children, root, "");
}

Scopes::Id Scopes::add(const std::string& path, const std::string& type) {
  if (const auto found = ids_.find(path); found != ids_.end()) return found->second;
  Entry entry{path, type, 0, 0};
  if (!path.empty()) {
    entry.parent = add(parent_path(path), "Scope");
    entry.depth = scopes_[entry.parent].depth + 1;
  }
  const auto id = static_cast<Id>(scopes_.size());
  scopes_.push_back(std::move(entry));
  return ids_[path] = id;
}

Scopes::Id Scopes::holder(const std::string& tensor_name) const {
  const auto found = ids_.find(parent_path(tensor_name));
  return found == ids_.end() ? 0 : found->second;
}

Scopes::Id Scopes::common(Id a, Id b) const {
  if (a < 0) return b;
  if (b < 0) return a;
  while (a != b) {
    if (scopes_[a].depth >= scopes_[b].depth) {
      a = scopes_[a].parent;
    } else {
      b = scopes_[b].parent;
    }
  }
  return a;
}

bool Scopes::within(Id inner, Id outer) const {
  while (scopes_[inner].depth > scopes_[outer].depth) inner = scopes_[inner].parent;
  return inner == outer;
}

void Scopes::push(const std::string& name) {
  const auto& outer = path(std::max(mark(), 0));
  marks_.push_back(add(outer.empty() ? name : outer + "." + name, "Scope"));
}

void Scopes::push(const torch::nn::Module& module) {
  const auto found = modules_.find(&module);
  marks_.push_back(found == modules_.end() ? mark() : found->second);
}

std::vector<graph::Scope> Scopes::list() const {
  std::vector<graph::Scope> list;
  for (const auto& scope : scopes_) list.push_back({scope.path, scope.type});
  return list;
}

// An op with parameters belongs to their module. Any other forward op lies between two of those:
// it belongs to the deepest module that encloses both neighbours, or, where deeper, the one that
// encloses where its operands were made (a residual addition at the end of a block).
void Scopes::assign(graph::Graph& graph, const std::vector<Hint>& hints) const {
  const auto count = graph.nodes.size();
  std::vector<Id> next(count + 1, -1), scope(count, 0), around(count, 0);
  const auto anchor = [&](size_t i) {
    if (graph.nodes[i].phase == graph::Phase::backward) return Id{-1};
    return hints[i].exact >= 0 ? hints[i].exact : hints[i].parameters;
  };
  for (size_t i = count; i-- > 0;) next[i] = anchor(i) >= 0 ? anchor(i) : next[i + 1];

  Id last = -1;
  for (size_t i = 0; i < count; ++i) {
    auto& node = graph.nodes[i];
    Id operands = -1;
    node.each_operand([&](graph::ValueId v) {
      if (const auto p = graph.values[v.index].producer; p >= 0) {
        operands = common(operands, around[p]);
      }
    });
    const auto& hint = hints[i];
    if (node.forward_node >= 0) {
      scope[i] = scope[node.forward_node];
    } else if (hint.exact >= 0) {
      scope[i] = hint.parameters >= 0 && within(hint.parameters, hint.exact) ? hint.parameters
                                                                             : hint.exact;
    } else if (hint.parameters >= 0 && node.phase == graph::Phase::forward) {
      scope[i] = hint.parameters;
    } else if (node.phase == graph::Phase::backward) {
      scope[i] = std::max(operands, 0);
    } else {
      const Id between = last < 0 || next[i] < 0 ? 0 : common(last, next[i]);
      scope[i] = operands < 0 ? between : deeper(operands, between);
    }
    if (anchor(i) >= 0) last = anchor(i);
    // What follows an op of a module with parameters is outside that module.
    const bool leaf = hint.exact < 0 && hint.parameters >= 0 && scope[i] == hint.parameters;
    around[i] = leaf ? scopes_[scope[i]].parent : scope[i];
    node.scope = path(scope[i]);
  }
}

}  // namespace perigee::tracing
