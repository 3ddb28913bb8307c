#include "shard/sequence.h"

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace perigee::shard {
namespace {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::ValueId;
using mesh::Placement;

class Placing {
 public:
  Placing(plan::Plan& plan, const Graph& graph, const SequenceSharding& sharding,
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
    const auto batch_axes = mesh::split_axes(plan.batch_axes);
    if (std::find(batch_axes.begin(), batch_axes.end(), sharding.axis) != batch_axes.end()) {
      fail(method, "an axis splits the batch or the sequence, but {} splits the batch",
           sharding.axis);
    }
    parts_ = plan.mesh.axes[axis_].size;
  }

  void run() {
    place_inputs();
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
  }

 private:
  void place_inputs() {
    std::vector<const Input*> inputs;
    for (const auto& input : graph_.inputs) {
      const auto& shape = graph_.type(input.value).shape;
      if (input.kind != Input::Kind::data || shape.size() < 2) continue;
      if (length_ == 0) length_ = shape[1];
      if (shape[1] == length_) inputs.push_back(&input);
    }
    if (inputs.empty()) {
      fail(method_,
           "data of [batch, sequence] are sharded on their sequence, but the model has none");
    }
    if (length_ % parts_ != 0) {
      fail(method_, "a sequence must divide over the {} ranks of axis {}, but has {}", parts_,
           sharding_.axis, length_);
    }
    for (const auto* input : inputs) pin(input->value, Placement::shard(1));
  }

  const std::vector<int64_t>& shape_of(const Node& node, const char* operand) const {
    return graph_.type(std::get<ValueId>(*node.find(operand))).shape;
  }

  // Returns whether it attends over the sequence that is sharded.
  bool place_attention(const Node& node) {
    const auto& query = shape_of(node, "query");  // [batch, heads, sequence, width]
    const auto& key = shape_of(node, "key");
    if (query[2] != length_ || key[2] != length_) return false;
    if (sharding_.attention == SequenceSharding::Attention::heads) {
      for (const auto* shape : {&query, &key}) {
        if ((*shape)[1] % parts_ == 0 || (shape == &key && key[1] == 1)) continue;
        fail(method_,
             "attention heads must divide over the {} ranks of axis {}, but {} has {}{}: "
             "context_parallel gathers keys and values instead",
             parts_, sharding_.axis, node.scope, (*shape)[1],
             shape == &key ? " for keys and values" : "");
      }
    }
    operand(node, "query", of_query());
    operand(node, "key", of_key(key[1]));
    operand(node, "value", of_key(key[1]));
    pin(node.outputs[0], of_query());
    return true;
  }

  void place_backward(const Node& node) {
    if (shape_of(node, "query")[2] != length_ || shape_of(node, "key")[2] != length_) return;
    operand(node, "grad", of_query());
    for (size_t r = 0; r < 3 && r < node.outputs.size(); ++r) {
      if (node.outputs[r].defined()) pin(node.outputs[r], Placement::shard(2));
    }
  }

  Placement of_query() const {
    return Placement::shard(sharding_.attention == SequenceSharding::Attention::heads ? 1 : 2);
  }
  Placement of_key(int64_t heads) const {
    const bool exchanged = sharding_.attention == SequenceSharding::Attention::heads && heads > 1;
    return exchanged ? Placement::shard(1) : Placement::replicate();
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
  int64_t parts_ = 1;
  int64_t length_ = 0;  // of the sequence
};

}  // namespace

void place(plan::Plan& plan, const Graph& graph, const SequenceSharding& sharding,
           const std::string& method) {
  Placing(plan, graph, sharding, method).run();
}

}  // namespace perigee::shard
