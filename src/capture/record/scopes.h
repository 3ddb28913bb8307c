// The module of each op. C++ modules have no forward hooks, so it is inferred from the parameters
// that ops use, from marks (perigee::scope) and from their neighbours.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace perigee::tracing {

class Scopes {
 public:
  using Id = int32_t;  // 0 is the top, -1 is unknown

  Scopes() { add("", "Model"); }

  // Lists every module below `root`. Returns nothing; paths are those of named_modules().
  void declare(const torch::nn::Module& root);

  // Returns the scope of that path; makes it, and its parents, where it is new.
  Id add(const std::string& path, const std::string& type);
  // Returns the scope that holds the parameter or buffer of that dotted name.
  Id holder(const std::string& tensor_name) const;
  // Returns the deepest scope that encloses both; -1 counts as "no opinion".
  Id common(Id a, Id b) const;
  Id parent(Id scope) const { return scopes_[scope].parent; }
  bool is_embedding(Id scope) const { return scopes_[scope].type.starts_with("Embedding"); }

  // Marks (perigee::scope), innermost last.
  void push(const std::string& name);
  void push(const torch::nn::Module& module);
  void pop() { marks_.pop_back(); }
  Id mark() const { return marks_.empty() ? -1 : marks_.back(); }

  const std::string& path(Id scope) const { return scopes_[scope].path; }
  std::vector<graph::Scope> list() const;

  // Evidence for the scope of a node, collected while it is recorded.
  struct Hint {
    Id parameters = -1;  // scope of the parameters that it uses
    Id exact = -1;       // mark, TorchScript's module stack, or the forward node's scope
  };
  // Sets the scope of every node. hints[i] belongs to graph.nodes[i].
  void assign(graph::Graph& graph, const std::vector<Hint>& hints) const;

 private:
  struct Entry {
    std::string path, type;
    Id parent = 0;
    int depth = 0;
  };
  // Returns true where `inner` is `outer` or lies below it.
  bool within(Id inner, Id outer) const;
  Id deeper(Id a, Id b) const { return scopes_[a].depth >= scopes_[b].depth ? a : b; }

  std::vector<Entry> scopes_;
  std::unordered_map<std::string, Id> ids_;
  std::unordered_map<const torch::nn::Module*, Id> modules_;
  std::vector<Id> marks_;
};

// Returns the type's name without "torch::nn::" and "Impl".
std::string type_name(const torch::nn::Module& module);

}  // namespace perigee::tracing
