#include "compile/graph/fuse/fuse_rows.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compile/graph/fuse/remove_nodes.h"
#include "graph/ops.h"

namespace perigee::compile {
namespace {

using graph::DType;
using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// A norm or its gradient, and the op that does an addition, too.
struct Norm {
  std::string_view op, fused;
  std::string_view operand = {};  // of a norm: the argument that it normalises
};
constexpr Norm kForward[] = {{"aten::native_layer_norm", "perigee::add_layer_norm", "input"},
                             {"perigee::rms_norm", "perigee::add_rms_norm", "self"}};
constexpr Norm kBackward[] = {
    {"aten::native_layer_norm_backward", "perigee::layer_norm_backward_add"},
    {"perigee::rms_norm_backward", "perigee::rms_norm_backward_add"}};

const Norm* find(std::span<const Norm> norms, std::string_view op) {
  const auto found = std::ranges::find(norms, op, &Norm::op);
  return found == norms.end() ? nullptr : &*found;
}

class FuseRows {
 public:
  FuseRows(Local& local, std::span<const std::string> scopes)
      : local_(local),
        scopes_(scopes),
        graph_(local.graph.graph),
        readers_(graph_.values.size()),
        is_output_(graph_.values.size()),
        removed_(graph_.nodes.size()) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      graph_.nodes[n].each_operand(
          [&](ValueId v) { readers_[v.index].push_back(static_cast<NodeId>(n)); });
    }
    for (const auto& output : graph_.outputs) {
      if (output.value.defined()) is_output_[output.value.index] = true;
    }
  }

  void run() {
    for (NodeId n = 0; n < std::ssize(graph_.nodes); ++n) {
      const auto& op = graph_.nodes[n].op;
      if (op == "aten::gelu_backward") {
        fuse_gelu(n);
      } else if (op == "perigee::fp8_amax") {
        fuse_magnitude(n);
      } else if (op == "perigee::fp8_amax_rows") {
        fuse_magnitudes_of_rows(n);
      } else if (const auto* norm = find(kForward, op)) {
        fuse_sum(n, *norm);
      } else if (const auto* backward = find(kBackward, op)) {
        fuse_gradient(n, backward->fused);
      }
    }
    remove_nodes(local_, removed_);
  }

 private:
  NodeId producer(ValueId v) const { return graph_.values[v.index].producer; }
  int section(NodeId n) const { return local_.stage ? local_.stage->section[n] : 0; }

  // Returns the operands of an addition of two tensors of one shape, or nothing.
  std::optional<std::pair<ValueId, ValueId>> terms_of(NodeId n) const {
    const auto& node = graph_.nodes[n];
    if (node.op != "aten::add.Tensor" || node.args.size() != 2 || removed_[n]) return {};
    const auto a = node.get<ValueId>("self", {}), b = node.get<ValueId>("other", {});
    const auto& shape = graph_.type(node.outputs[0]).shape;
    if (!a.defined() || !b.defined() || graph_.type(a).shape != shape ||
        graph_.type(b).shape != shape) {
      return {};
    }
    return std::pair(a, b);
  }

  // Returns whether an addition may join a norm: it belongs to the module that has the norm, not to
  // another block (a module with a number), and the plan treats both the same.
  bool are_together(std::string_view addition, std::string_view norm) const {
    const auto dot = norm.rfind('.');
    const auto module = dot == norm.npos ? std::string_view() : norm.substr(0, dot);
    if (!graph::contains_scope(module, addition) || has_number(addition.substr(module.size())))
      return false;
    return are_alike(addition, norm);
  }

  // Returns whether the plan treats the values of both scopes the same.
  bool are_alike(std::string_view a, std::string_view b) const {
    return std::ranges::all_of(scopes_, [&](const std::string& scope) {
      return graph::contains_scope(scope, a) == graph::contains_scope(scope, b);
    });
  }

  // Returns whether the node makes anything that takes time and memory.
  bool works(NodeId n) const {
    const auto& op = graph_.nodes[n].op;
    return !removed_[n] && !graph::is_view(op) && op != "perigee::reshape" && op != "perigee::cast";
  }

  // Returns whether a part of a scope begins with a digit.
  static bool has_number(std::string_view scope) {
    for (size_t i = 0; i < scope.size(); ++i) {
      const bool begins = i == 0 || scope[i - 1] == '.';
      if (begins && scope[i] >= '0' && scope[i] <= '9') return true;
    }
    return false;
  }

  // Takes the node out, for which `stands_in` makes its results.
  void remove(NodeId n, NodeId stands_in) {
    for (auto& node : graph_.nodes) {
      if (node.forward_node == n) node.forward_node = stands_in;
    }
    graph_.nodes[n].outputs.clear();
    removed_[n] = true;
  }

  // Lets the norm add the terms of the sum that it reads.
  void fuse_sum(NodeId n, const Norm& norm) {
    auto& node = graph_.nodes[n];
    const auto sum = node.get<ValueId>(norm.operand, {});
    const auto addition = producer(sum);
    if (addition < 0 || section(addition) != section(n)) return;
    const auto terms = terms_of(addition);
    if (!terms || !are_together(graph_.nodes[addition].scope, node.scope)) return;
    auto [self, other] = *terms;
    const auto dtype = graph_.type(sum).dtype;
    if (graph_.type(self).dtype != dtype) std::swap(self, other);
    const auto added = graph_.type(other).dtype;
    if (graph_.type(self).dtype != dtype ||
        (added != dtype && !(dtype == DType::float32 && graph::is_half(added)))) {
      return;
    }
    // The terms live until the norm, which is next to the addition for that, and others read the
    // sum after it.
    for (auto between = addition + 1; between < n; ++between) {
      if (works(between) || reads(between, sum)) return;
    }
    std::vector<std::pair<std::string, graph::Arg>> args = {{"self", self}, {"other", other}};
    for (auto& [name, arg] : node.args) {
      if (name != norm.operand) args.emplace_back(std::move(name), std::move(arg));
    }
    node.op = norm.fused;
    node.args = std::move(args);
    node.outputs.insert(node.outputs.begin(), sum);
    remove(addition, n);
  }

  // Lets the norm's gradient add the gradient that its only reader adds.
  void fuse_gradient(NodeId n, std::string_view fused) {
    auto& node = graph_.nodes[n];
    const auto gradient = node.outputs[0];
    if (!gradient.defined() || is_output_[gradient.index] || readers_[gradient.index].size() != 1)
      return;
    const auto addition = readers_[gradient.index][0];
    const auto terms = terms_of(addition);
    if (!terms || section(addition) != section(n) ||
        !are_together(graph_.nodes[addition].scope, node.scope)) {
      return;
    }
    const auto other = terms->first == gradient ? terms->second : terms->first;
    const auto sum = graph_.nodes[addition].outputs[0];
    const auto& type = graph_.type(gradient);
    if (producer(other) >= n || graph_.type(other) != type || graph_.type(sum) != type) return;
    node.op = fused;
    node.args.emplace_back("other", other);
    node.outputs[0] = sum;
    graph_.values[gradient.index].producer = -1;
    graph_.values[sum.index].producer = n;
    readers_[other.index].push_back(n);
    remove(addition, n);
    fuse_cast(n);
  }

  // Lets a norm's gradient round itself to the low precision to which it is cast after it.
  void fuse_cast(NodeId n) {
    const auto sum = graph_.nodes[n].outputs[0];
    if (graph_.type(sum).dtype != DType::float32) return;
    for (const auto reader : readers_[sum.index]) {
      const auto& cast = graph_.nodes[reader];
      if (cast.op != "perigee::cast" || section(reader) != section(n)) continue;
      const auto low = cast.outputs[0];
      if (!graph::is_half(graph_.type(low).dtype) || !are_alike(cast.scope, graph_.nodes[n].scope))
        continue;
      // Not across other work, which would hold the memory of both.
      bool apart = false;
      for (auto between = n + 1; between < reader; ++between) apart |= works(between);
      if (apart) continue;
      auto& node = graph_.nodes[n];
      node.outputs.resize(node.op == "perigee::layer_norm_backward_add" ? 3 : 2);
      node.outputs.push_back(low);
      graph_.values[low.index].producer = n;
      remove(reader, n);
      if (node.get<std::vector<int64_t>>("normalized_shape", {1}).size() == 1) fuse_row_sum(n, low);
      return;
    }
  }

  bool reads(NodeId n, ValueId v) const {
    return !removed_[n] && std::ranges::count(readers_[v.index], n) > 0;
  }

  // Collects the readers of a value and of its reshapes that keep its columns.
  void collect_readers(ValueId v, std::vector<NodeId>& all) const {
    const auto columns = graph_.type(v).shape.back();
    for (const auto reader : readers_[v.index]) {
      const auto& node = graph_.nodes[reader];
      all.push_back(reader);
      if (node.op != "perigee::reshape" || node.find("part")) continue;
      const auto& shape = graph_.type(node.outputs[0]).shape;
      if (!shape.empty() && shape.back() == columns) collect_readers(node.outputs[0], all);
    }
  }

  // Lets GELU's gradient make the sum of its rows, which is the gradient of a bias before GELU.
  void fuse_gelu(NodeId n) {
    const auto gradient = graph_.nodes[n].outputs[0];
    const auto type = graph_.type(gradient);
    const auto is_whole = [&](std::string_view operand) {
      const auto v = graph_.nodes[n].get<ValueId>(operand, {});
      return v.defined() && graph_.type(v) == type;
    };
    if (type.shape.empty() || !is_whole("grad_output") || !is_whole("self")) return;
    if (fuse_row_sum(n, gradient)) graph_.nodes[n].op = "perigee::gelu_backward_sum";
  }

  // Lets the node make the sum of the rows of one of its results, as another result. Returns whether
  // there is such a sum.
  bool fuse_row_sum(NodeId n, ValueId rows) {
    const auto type = graph_.type(rows);
    std::vector<NodeId> uses;
    collect_readers(rows, uses);
    for (const auto use : uses) {
      auto& sum = graph_.nodes[use];
      if (sum.op != "aten::sum.dim_IntList" || section(use) != section(n)) continue;
      const auto dims = graph_.type(sum.get<ValueId>("self", {})).shape.size();
      const auto& result = graph_.type(sum.outputs[0]);
      if (!sums_rows(sum, static_cast<int64_t>(dims)) || result.dtype != type.dtype) continue;
      const auto made = graph_.add_value({type.dtype, {type.shape.back()}});
      readers_.emplace_back();
      is_output_.push_back(false);
      graph_.nodes[n].outputs.push_back(made);
      graph_.values[made.index].producer = n;
      sum.op = "perigee::reshape";
      sum.args = {{"self", made}};
      return true;
    }
    return false;
  }

  // Lets a cast to eight bits make the largest magnitude of its operand, which is needed after it.
  void fuse_magnitude(NodeId n) {
    const auto& node = graph_.nodes[n];
    for (const auto reader : readers_[node.get<ValueId>("self", {}).index]) {
      auto& cast = graph_.nodes[reader];
      if (cast.op != "perigee::fp8_cast" || reader > n || section(reader) != section(n)) continue;
      const auto magnitude = node.outputs[0];
      cast.op = "perigee::fp8_cast_amax";
      cast.outputs.push_back(magnitude);
      graph_.values[magnitude.index].producer = reader;
      remove(n, reader);
      return;
    }
  }

  // Lets a cast of rows find the magnitudes that scale them, if nothing else reads those.
  void fuse_magnitudes_of_rows(NodeId n) {
    const auto magnitudes = graph_.nodes[n].outputs[0];
    if (is_output_[magnitudes.index] || readers_[magnitudes.index].size() != 1) return;
    const auto reader = readers_[magnitudes.index][0];
    auto& cast = graph_.nodes[reader];
    const auto self = graph_.nodes[n].get<ValueId>("self", {});
    const auto last = std::ssize(graph_.type(self).shape) - 1;
    if (cast.op != "perigee::fp8_cast_rows" || cast.get<ValueId>("self", {}) != self ||
        graph_.nodes[n].get<int64_t>("dim", 0) != last || section(reader) != section(n)) {
      return;
    }
    std::erase_if(cast.args, [](const auto& arg) { return arg.first == "amax"; });
    graph_.values[magnitudes.index].producer = -1;
    remove(n, reader);
  }

  // Returns whether the sum is over all dims but the last of `dims`.
  static bool sums_rows(const Node& sum, int64_t dims) {
    auto over = sum.get<std::vector<int64_t>>("dim", {});
    for (auto& d : over) d += d < 0 ? dims : 0;
    std::ranges::sort(over);
    for (int64_t d = 0; d < std::ssize(over); ++d) {
      if (over[static_cast<size_t>(d)] != d) return false;
    }
    return std::ssize(over) == dims - 1;
  }

  Local& local_;
  std::span<const std::string> scopes_;
  Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;  // by value
  std::vector<bool> is_output_;               // by value
  std::vector<bool> removed_;                 // by node
};

}  // namespace

void fuse_rows(Local& local, std::span<const std::string> scopes) { FuseRows(local, scopes).run(); }

}  // namespace perigee::compile
