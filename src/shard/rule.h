// Sharding rules: how the dims of an op's operands and results relate. A rule is a line of text
// where text can say it,
//
//     mm: m k+, k n -> m n; linear(0) linear(1)
//
// and a function where it depends on shapes or attributes (views, index ops). Either gives a
// Pattern for one node; the ways to run the node sharded follow from it (DESIGN: src/README.md
// section 4).
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "mesh/placement.h"

namespace perigee::shard {

// A node as rules see it: its defined tensor operands in each_operand order, with global types.
class Call {
 public:
  Call(const graph::Graph& graph, const graph::Node& node);

  const graph::Node& node() const { return node_; }
  const graph::Graph& graph() const { return graph_; }
  int operand_count() const { return static_cast<int>(operands_.size()); }
  int result_count() const { return static_cast<int>(node_.outputs.size()); }
  graph::ValueId operand(int i) const { return operands_[i]; }
  const graph::TensorType& operand_type(int i) const { return graph_.type(operands_[i]); }
  const std::vector<int64_t>& shape(int i) const { return operand_type(i).shape; }
  int rank(int i) const { return static_cast<int>(shape(i).size()); }
  bool has_result(int r) const { return r < result_count() && node_.outputs[r].defined(); }
  const graph::TensorType& result_type(int r) const { return graph_.type(node_.outputs[r]); }
  const std::vector<int64_t>& result_shape(int r) const { return result_type(r).shape; }
  int result_rank(int r) const { return static_cast<int>(result_shape(r).size()); }

  // Returns the operand index of the tensor argument (the first of a list), or -1 where it is
  // absent.
  int find(std::string_view argument) const;
  // Returns the operand's argument name.
  const std::string& argument_of(int i) const;

  // Returns the int argument counted from the front of `rank` dims, or `otherwise` where it is left
  // out.
  int dim(std::string_view argument, int rank, int otherwise) const;
  // Returns for each of `rank` dims whether the argument (an int, a list, or nothing for all) names
  // it.
  std::vector<bool> named_dims(std::string_view argument, int rank) const;

 private:
  const graph::Graph& graph_;
  const graph::Node& node_;
  std::vector<graph::ValueId> operands_;
  std::vector<int> arguments_;  // per operand: position in node.args
};

// What a result becomes that lacks a dim which is sharded.
enum class Role : uint8_t {
  free,    // not allowed: every defined result has the dim
  sum,     // Partial(sum)
  max,     // Partial(max)
  min,     // Partial(min)
  agreed,  // equal on all ranks: the rule's lowering communicates
};

// A named dim of a rule.
struct Dim {
  Role role = Role::free;
  bool even = false;  // only into equal shards: its tensors' sizes differ (a view merges or splits
                      // it, grouped heads)
  bool one_piece = false;  // not in runs: the lowering needs the shard's place in the whole dim
  bool zigzag = false;     // of such a dim: the lowering can do with two pieces
};

// A dim of the pattern that is an inner part of a tensor's dim: where it is sharded, that is in
// runs.
struct Inner {
  int dim = 0;  // of the pattern
  bool of_result = false;
  int tensor = 0;  // operand or result index
  int tensor_dim = 0;
  int64_t run = 0;
};

// A way to shard a pattern's dim: in one piece, zigzag, or in runs, all its tensors alike.
struct Cut {
  int dim = 0;
  int64_t run = 0;
  bool zigzag = false;
  bool operator==(const Cut&) const = default;
};

// An argument that repeats a shape, or one size of it, and must become local.
struct SizeArgument {
  std::string name;
  bool of_result = false;
  int tensor = 0;  // operand or result index
  int dim = -1;    // -1: the whole shape
};

// A way to shard the node that no dim of the pattern is: its tensors are cut into equal shards,
// each along a dim of its own, and the lowering has the ranks exchange what lies elsewhere (tokens
// and the experts that they go to, queries and the keys that they see).
struct Crossing {
  std::vector<int> operands, results;  // per tensor: its dim, or -1 where it is whole
  // The tensors whose elements change ranks, all of them.
  struct Moved {
    bool of_result = false;
    int tensor = 0;
    bool operator==(const Moved&) const = default;
  };
  std::vector<Moved> moves;
  // Every element visits all ranks, one after the other. Taken just where the tensors that move lie
  // so, and then whatever it costs: where another way is wanted they are pinned elsewhere.
  bool visits = false;
  bool zigzag = false;  // may be cut so too
  bool operator==(const Crossing&) const = default;
};

// One node's dims. A tensor dim holds an index of `dims`, or -1: it must be whole.
struct Pattern {
  std::vector<Dim> dims;
  std::vector<std::vector<int>> operands;
  std::vector<std::vector<int>> results;  // undefined results: empty
  // Sets of operands in which the op is jointly linear: these may be Partial(sum) while all others
  // are replicated, and then all results are Partial(sum).
  std::vector<std::vector<int>> linear;
  bool any_reduce =
      false;  // the op only moves elements: what holds for Partial(sum) holds for every reduction
  std::vector<int>
      addends;  // operands that are added once: Partial where a Role::sum dim is sharded (a bias)
  std::vector<SizeArgument> sizes;
  std::vector<Inner> inner;
  std::vector<Crossing> crossings;
  // Operands and results whose first dims are the axes of the mesh, each as long as its axis, or 1
  // where ranks have them alike: every rank has its own element, whatever else the node is cut on.
  std::vector<int> own_operands, own_results;

  // Returns the index of a new dim.
  int add(Role role = Role::free, bool even = false);
  // Returns how an operand or a result lies where a dim is cut so; nothing where it lacks the dim.
  std::optional<mesh::Placement> placed(Cut cut, bool of_result, int tensor) const;
  // Returns the cut that gives the operand or result this sharded placement; nothing where the op
  // needs it whole.
  std::optional<Cut> cut_of(const mesh::Placement& placement, bool of_result, int tensor) const;
};

// Returns true when the pattern has a list for every tensor and equal sizes for every dim that is
// not `even`.
bool fits(const Pattern& pattern, const Call& call);

class Lowering;

struct Rule {
  // Returns the node's pattern, or nothing where the rule does not cover its attributes or shapes.
  std::function<std::optional<Pattern>(const Call&)> pattern;
  // Emits the local nodes where some dim is sharded or some operand Partial, and returns the
  // results; empty: the same op with local types and `sizes`.
  std::function<std::vector<graph::ValueId>(Lowering&)> lower = {};
};

// Parses a rule's text. The grammar, by example:
//
//     input: b* h^, weight?: h, bias?: h -> b* h, b* 1, b* 1; normalized_shape eps linear(input)
//
// One pattern for each operand, in the op's order; `name:` gives the argument's name and `name?:`
// one that may be absent (then all are named). `name[]:` is a tensor list whose members share the
// pattern. Dims: `k` may be sharded and results follow; `k+` is summed over, results without it are
// Partial; `k^` is never sharded; `b*` any number of dims, aligned at the right and broadcast; `1`
// a dim of its own that stays whole. A suffix holds for the letter wherever it stands. After `;`
// come the op's attributes: `eps` does not matter, `sparse=false` must be so or left out, `dim^`
// names dims of the first operand that stay whole, `input_sizes=@0` repeats the shape of result 0,
// `linear(grad)` lists operands (by name or position) that may be Partial together. A node with
// another attribute is not covered. Throws Error naming the op and what is wrong with the text.
Rule parse_rule(std::string_view op, std::string_view text);

// Rules by op.
class Rules {
 public:
  // Returns the built-in rules.
  static const Rules& built_in();

  void add(std::string op, Rule rule);
  // Adds or replaces a rule given as text. Throws Error.
  void add_rule(std::string op, std::string_view text);
  // Returns the op's rule, the default rule of pointwise ops, or nullptr.
  const Rule* find(std::string_view op) const;
  const std::map<std::string, Rule, std::less<>>& all() const { return rules_; }

 private:
  std::map<std::string, Rule, std::less<>> rules_;
};

}  // namespace perigee::shard
