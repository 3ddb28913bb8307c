#include "shard/layouts/sequence.h"

#include <algorithm>
#include <vector>

#include "base/fail.h"
#include "shard/rules/rule.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::ValueId;
using mesh::Placement;

class SequencePlacing {
 public:
  SequencePlacing(plan::Plan& plan, const Graph& graph, const SequenceSharding& sharding,
                  const std::string& method)
      : plan_(plan),
        graph_(graph),
        sharding_(sharding),
        method_(method),
        names_(graph::value_names(graph)),
        axis_(plan.mesh.find(sharding.axis)) {
    if (axis_ < 0) {
      std::vector<std::string> axes;
      for (const auto& axis : plan.mesh.axes) axes.push_back(axis.name);
      fail(method, "the sequence is sharded over an axis of the mesh ({}), but got \"{}\"{}",
           fmt::join(axes, ", "), sharding.axis, did_you_mean(sharding.axis, axes));
    }
    const auto batch_axes = plan.batch_axes;
    if (std::find(batch_axes.begin(), batch_axes.end(), sharding.axis) != batch_axes.end()) {
      fail(method, "an axis splits the batch or the sequence, but {} splits the batch",
           sharding.axis);
    }
    parts_ = plan.mesh.axes[axis_].size;
  }

  bool run() {
    find_inputs();
    find_order();
    for (auto v : inputs_) pin(v, part(1));
    bool any = false;
    for (const auto& node : graph_.nodes) {
      if (node.op == "perigee::attention") {
        any = place_attention(node) || any;
      } else if (node.op == "perigee::attention_backward") {
        place_backward(node);
      }
    }
    if (!any) {
      fail(method_, "attention over the sequence of {} is needed, but the model has none", length_);
    }
    return zigzag_;
  }

 private:
  void find_inputs() {
    for (const auto& input : graph_.inputs) {
      const auto& shape = graph_.type(input.value).shape;
      if (input.kind != Input::Kind::data || !input.batched || shape.size() < 2) continue;
      if (length_ == 0) length_ = shape[1];
      if (shape[1] == length_) inputs_.push_back(input.value);
    }
    if (inputs_.empty()) {
      fail(method_,
           "data of [batch, sequence] are sharded on their sequence, but the model has none");
    }
    // Other axes may shard it too.
    std::string axes = sharding_.axis;
    std::string zigzag;  // the other axis that has it
    const auto found = plan_.placements.find(names_[inputs_[0].index]);
    for (size_t a = 0; found != plan_.placements.end() && a < found->second.size(); ++a) {
      const auto& other = found->second[a];
      if (static_cast<int>(a) == axis_ || !other.is_shard() || other.dim != 1) continue;
      others_ *= plan_.mesh.axes[a].size;
      axes += " and " + plan_.mesh.axes[a].name;
      if (other.zigzag) zigzag = plan_.mesh.axes[a].name;
    }
    if (length_ % (parts_ * others_) != 0) {
      fail(method_, "a sequence must divide over the {} ranks of axis {}, but has {}",
           parts_ * others_, axes, length_);
    }
    if (!zigzag.empty() && length_ % (2 * parts_ * others_) != 0) {
      fail(method_,
           "a sequence must divide into {} pieces, two for each rank of axes {}, but has {}: list "
           "{} before the method of axis {}, or give that one load_balance = false",
           2 * parts_ * others_, axes, length_, method_, zigzag);
    }
  }

  // Decides whether shards are zigzag.
  void find_order() {
    bool causal = false;
    const Node* biased = nullptr;
    for (const auto& node : graph_.nodes) {
      if (node.op != "perigee::attention" || !attends(node)) continue;
      causal = causal || node.get<bool>("causal", false);
      if (node.get<ValueId>("bias", {}).defined()) biased = &node;
    }
    const bool divides = length_ % (2 * parts_ * others_) == 0;
    const bool around = sharding_.attention == SequenceSharding::Attention::ring;
    const bool may = sharding_.attention != SequenceSharding::Attention::heads &&
                     (!biased || around);
    zigzag_ = sharding_.zigzag.value_or(may && causal && divides);
    if (zigzag_ && !divides) {
      fail(method_,
           "with load_balance a sequence must divide into {} pieces, two for each rank of axis {}, "
           "but has {} (load_balance = false needs one for each)",
           2 * parts_ * others_, sharding_.axis, length_);
    }
    if (!biased) return;
    if (zigzag_ && !around) {
      fail(method_,
           "load_balance requires attention without a bias, or a ring, but {} has a bias: use "
           "load_balance = false or attention = \"ring\"",
           biased->scope);
    }
    for (const auto& node : graph_.nodes) {
      const bool backward = node.op == "perigee::attention_backward";
      if (!around || (!backward && node.op != "perigee::attention") || !attends(node)) continue;
      const auto pattern = Rules::built_in().find(node.op)->pattern(Call(graph_, node));
      if (pattern && !pattern->communicating.empty()) continue;
      fail(method_,
           "a ring requires a trained bias to have a number for each query and "
           "key, but that of {} broadcasts: use attention = \"all_gather\"",
           node.scope);
    }
  }

  bool attends(const Node& node) const {
    return shape_of(node, "query")[2] == length_ && shape_of(node, "key")[2] == length_;
  }

  // The placement of a sequence dim.
  Placement part(int dim) const { return Placement::shard(dim, 0, zigzag_); }

  const std::vector<int64_t>& shape_of(const Node& node, const char* operand) const {
    return graph_.type(std::get<ValueId>(*node.find(operand))).shape;
  }

  // Returns whether it attends over the sharded sequence.
  bool place_attention(const Node& node) {
    const auto& query = shape_of(node, "query");  // [batch, heads, sequence, width]
    const auto& key = shape_of(node, "key");
    if (!attends(node)) return false;
    if (sharding_.attention == SequenceSharding::Attention::heads) {
      const auto parts = parts_ * sharing_heads(node);
      for (const auto* shape : {&query, &key}) {
        if ((*shape)[1] % parts == 0 || (shape == &key && key[1] == 1)) continue;
        fail(method_,
             "attention heads must divide over the {} ranks of axis {}, but {} has {}{}: "
             "context_parallel gathers keys and values instead",
             parts, sharding_.axis, node.scope, (*shape)[1],
             shape == &key ? " for keys and values" : "");
      }
    }
    operand(node, "query", of_query());
    operand(node, "key", of_key(key[1]));
    operand(node, "value", of_key(key[1]));
    pin(node.outputs[0], of_query());
    return true;
  }

  // The ranks of other axes that already shard heads.
  int64_t sharing_heads(const Node& node) const {
    const auto query = std::get<ValueId>(*node.find("query"));
    const auto found = plan_.placements.find(names_[query.index]);
    int64_t ranks = 1;
    for (size_t a = 0; found != plan_.placements.end() && a < found->second.size(); ++a) {
      if (static_cast<int>(a) == axis_ || found->second[a] != Placement::shard(1)) continue;
      ranks *= plan_.mesh.axes[a].size;
    }
    return ranks;
  }

  void place_backward(const Node& node) {
    if (!attends(node)) return;
    operand(node, "grad", of_query());
    for (size_t r = 0; r < 3 && r < node.outputs.size(); ++r) {
      if (node.outputs[r].defined()) pin(node.outputs[r], part(2));
    }
  }

  Placement of_query() const {
    const bool exchanged = sharding_.attention == SequenceSharding::Attention::heads;
    return exchanged ? Placement::shard(1) : part(2);
  }
  Placement of_key(int64_t heads) const {
    switch (sharding_.attention) {
      case SequenceSharding::Attention::ring:
        return part(2);
      case SequenceSharding::Attention::heads:
        if (heads > 1) return Placement::shard(1);
        break;
      case SequenceSharding::Attention::gather:
        break;
    }
    return Placement::replicate();
  }

  void operand(const Node& node, const char* name, Placement placement) {
    pin(std::get<ValueId>(*node.find(name)), placement);
  }

  void pin(ValueId v, Placement placement) {
    auto& placements = plan_.placements[names_[v.index]];
    placements.resize(plan_.mesh.axes.size(), Placement::open());
    placements[axis_] = placement;
  }

  plan::Plan& plan_;
  const Graph& graph_;
  const SequenceSharding& sharding_;
  const std::string& method_;
  const std::vector<std::string> names_;
  const int axis_;
  int64_t parts_ = 1, others_ = 1;  // ranks of the axis, and of others that shard the sequence
  std::vector<ValueId> inputs_;
  int64_t length_ = 0;  // of the sequence
  bool zigzag_ = false;
};

}  // namespace

bool place(plan::Plan& plan, const Graph& graph, const SequenceSharding& sharding,
           const std::string& method) {
  return SequencePlacing(plan, graph, sharding, method).run();
}

}  // namespace perigee::shard
