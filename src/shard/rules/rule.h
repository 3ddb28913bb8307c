// Sharding rules: how the dims of an op's operands and results relate. A rule is a line of text
// where text can say it,
//
//     mm: m k+, k n -> m n; linear(0) linear(1)
//
// and a function where it depends on shapes or attributes (views, index ops). Both give a Pattern
// for one node, from which its possible shardings follow (design: src/README.md section 4).
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

  // Returns the operand index of the tensor argument (the first of a list), or -1 if it is absent.
  int find(std::string_view argument) const;
  // Returns the operand's argument name.
  const std::string& argument_of(int i) const;

  // Returns the int argument as a dim counted from the front of `rank` dims, or `otherwise` if it
  // is left out.
  int dim(std::string_view argument, int rank, int otherwise) const;
  // Returns for each of `rank` dims whether the argument (an int, a list, or nothing for all)
  // names it.
  std::vector<bool> named_dims(std::string_view argument, int rank) const;

 private:
  const graph::Graph& graph_;
  const graph::Node& node_;
  std::vector<graph::ValueId> operands_;
  std::vector<int> arguments_;  // per operand: position in node.args
};

// The placement of a result that lacks a sharded dim.
enum class Role : uint8_t {
  free,    // not allowed: every defined result has the dim
  sum,     // Partial(sum)
  max,     // Partial(max)
  min,     // Partial(min)
  agreed,  // equal on all ranks: operands are, or the rule's lowering communicates
};

// A named dim of a rule.
struct Dim {
  Role role = Role::free;
  // equal shards only: its tensors' sizes differ (a view merges or splits it, grouped heads)
  bool even = false;
  bool one_piece = false;  // not in runs: the lowering needs the shard's offset in the whole dim
  bool zigzag = false;     // with one_piece: the lowering also accepts two pieces
};

// A dim of the pattern that is the inner part of a tensor's dim: sharding it cuts the tensor
// in runs.
struct InnerDim {
  int dim = 0;  // of the pattern
  bool of_result = false;
  int tensor = 0;  // operand or result index
  int tensor_dim = 0;
  int64_t run = 0;
};

// How a pattern's dim is cut in all its tensors: in one piece, zigzag or in runs.
struct DimCut {
  int dim = 0;
  int64_t run = 0;
  bool zigzag = false;
  bool operator==(const DimCut&) const = default;
};

// An argument that repeats a shape or a size and must become local.
struct SizeArgument {
  std::string name;
  bool of_result = false;
  int tensor = 0;  // operand or result index
  int dim = -1;    // -1: the whole shape
};

// A sharding of the node whose lowering communicates: its tensors are cut into equal shards along
// different dims, and the ranks exchange rows (tokens and the experts that they are routed to) or
// pass shards on (queries and the keys that they attend to).
struct CommunicatingRule {
  std::vector<int> operands, results;  // per tensor: the sharded dim, or -1: replicated
  // A tensor whose elements all change ranks.
  struct Moved {
    bool of_result = false;
    int tensor = 0;
    bool operator==(const Moved&) const = default;
  };
  std::vector<Moved> moves;
  // Every element visits all ranks, one after the other. Chosen exactly if the tensors that move
  // have these placements, whatever the cost: to prevent it, pin them elsewhere.
  bool visits = false;
  bool zigzag = false;  // shards may be zigzag
  bool operator==(const CommunicatingRule&) const = default;
};

// The dims of one node. Each tensor dim is an index of `dims`, or -1: not sharded.
struct Pattern {
  std::vector<Dim> dims;
  std::vector<std::vector<int>> operands;
  std::vector<std::vector<int>> results;  // undefined results: empty
  // Sets of operands in which the op is jointly linear: if those of a set are Partial(sum) and all
  // others replicated, all results are Partial(sum).
  std::vector<std::vector<int>> linear;
  // The op only moves elements, so that rules for Partial(sum) hold for every reduction.
  bool any_reduce = false;
  // Operands that are added once: Partial where a Role::sum dim is sharded (a bias).
  std::vector<int> addends;
  std::vector<SizeArgument> sizes;
  std::vector<InnerDim> inner;
  std::vector<CommunicatingRule> communicating;
  // Operands that the op writes: they are used as they are placed, since the op would write to a
  // redistributed copy.
  std::vector<int> in_place;
  // Operands and results with an element for each rank: their first dims are the axes of the mesh,
  // each as long as its axis, or 1 where all ranks of the axis share the element.
  std::vector<int> own_operands, own_results;

  // Returns the index of a new dim.
  int add(Role role = Role::free, bool even = false);
  // Returns the placement of an operand or a result under the cut; nothing if it lacks the dim.
  std::optional<mesh::Placement> placed(DimCut cut, bool of_result, int tensor) const;
  // Returns the cut that gives the operand or result this sharded placement; nothing if the op
  // needs it whole.
  std::optional<DimCut> cut_of(const mesh::Placement& placement, bool of_result, int tensor) const;
};

// Returns whether the pattern has a list for every tensor, and equal sizes for every dim that is
// not `even`.
bool fits(const Pattern& pattern, const Call& call);

class RuleLowering;

struct Rule {
  // Returns the node's pattern, or nothing if the rule does not cover its attributes or shapes.
  std::function<std::optional<Pattern>(const Call&)> pattern;
  // Emits the local nodes if some dim is sharded or some operand Partial, and returns the results.
  // Empty: the same op is emitted with local types and `sizes`.
  std::function<std::vector<graph::ValueId>(RuleLowering&)> lower = {};
};

// Parses a rule's text. The grammar, by example:
//
//     input: b* h^, weight?: h, bias?: h -> b* h, b* 1, b* 1; normalized_shape eps linear(input)
//
// One pattern for each operand, in the op's order; `name:` gives the argument's name and `name?:`
// that of an optional one (then all are named). `name[]:` is a tensor list whose members share the
// pattern. Dims: `k` may be sharded and results follow; `k+` is summed over, results without it are
// Partial; `k^` is never sharded; `b*` any number of dims, aligned at the right and broadcast; `1`
// a dim of its own that is not sharded. A suffix holds for every occurrence of the letter. After
// `;` come the op's attributes: `eps` does not matter, `sparse=false` must be false or left out,
// `dim^` names unsharded dims of the first operand, `input_sizes=@0` repeats the shape of result 0,
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
