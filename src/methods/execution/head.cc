#include "methods/execution/head.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <vector>

#include "base/fail.h"

namespace perigee::methods {
namespace {

using graph::Graph;
using graph::Input;
using graph::Node;
using graph::ValueId;

// Walks from the loss back to the first matrix products with a parameter on each path.
class Search {
 public:
  explicit Search(const Graph& graph) : graph_(graph), seen_(graph.values.size()) {
    for (const auto& input : graph.inputs) {
      if (input.kind == Input::Kind::parameter) parameters_[input.value.index] = &input;
    }
  }

  // Returns nullptr where there is none.
  const Input* run() {
    for (const auto& output : graph_.outputs) {
      if (output.kind == graph::Output::Kind::loss) open_.push_back(output.value);
    }
    const Input* head = nullptr;
    int64_t most = 0;
    while (!open_.empty()) {
      const auto v = open_.back();
      open_.pop_back();
      if (!v.defined() || seen_[v.index]) continue;
      seen_[v.index] = true;
      const auto* node = producer(v);
      if (!node) continue;
      if (const auto* weight = weight_of(*node)) {
        if (graph_.type(v).numel() > most) head = weight;
        most = std::max(most, graph_.type(v).numel());
      } else {
        node->each_operand([&](ValueId operand) { open_.push_back(operand); });
      }
    }
    return head;
  }

 private:
  const Node* producer(ValueId v) const {
    const auto n = graph_.values[v.index].producer;
    return n < 0 ? nullptr : &graph_.nodes[n];
  }

  // Returns the parameter that a matrix product reads, perhaps transposed, or nullptr.
  const Input* weight_of(const Node& node) const {
    if (node.op != "aten::mm" && node.op != "aten::addmm") return nullptr;
    for (const std::string_view factor : {"mat2", "mat1", "self"}) {
      const auto* arg = node.find(factor);
      const auto* v = arg ? std::get_if<ValueId>(arg) : nullptr;
      if (!v || !v->defined() || (node.op == "aten::addmm" && factor == "self")) continue;
      if (const auto* found = parameter_of(*v)) return found;
    }
    return nullptr;
  }

  const Input* parameter_of(ValueId v) const {
    constexpr std::array<std::string_view, 4> views = {"aten::t", "aten::transpose.int",
                                                       "perigee::reshape", "perigee::cast"};
    for (const auto* node = producer(v); node; node = producer(v)) {
      if (std::find(views.begin(), views.end(), node->op) == views.end()) return nullptr;
      v = std::get<ValueId>(*node->find("self"));
    }
    const auto found = parameters_.find(v.index);
    return found == parameters_.end() ? nullptr : found->second;
  }

  const Graph& graph_;
  std::vector<bool> seen_;
  std::vector<ValueId> open_;
  std::map<int32_t, const Input*> parameters_;  // by value
};

}  // namespace

std::string find_head(const Graph& graph) {
  const auto* head = Search(graph).run();
  if (head) return head->name;
  fail("overlap",
       "deferred_head requires a matrix product with a parameter that the loss is computed from, "
       "but the model has none: leave deferred_head out");
}

}  // namespace perigee::methods
