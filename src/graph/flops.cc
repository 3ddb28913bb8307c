#include "graph/flops.h"

#include <algorithm>
#include <unordered_map>

#include "graph/ops.h"

namespace perigee::graph {
namespace {

// Shapes of a node's operands and results. An absent operand has no elements.
class Sizes {
 public:
  Sizes(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  const Node& node() const { return node_; }

  double result() const {
    double n = 0;
    for (auto v : node_.outputs) n += numel(v);
    return n;
  }

  double operand(std::string_view name) const { return numel(node_.get<ValueId>(name, {})); }

  // The size of a dim counted from the back: 1 is the last. 1 where there is no such operand
  // or dim.
  double size_from_end(std::string_view name, size_t dim) const {
    const auto v = node_.get<ValueId>(name, {});
    if (!v.defined()) return 1;
    const auto& shape = graph_.type(v).shape;
    return dim > shape.size() ? 1 : static_cast<double>(shape[shape.size() - dim]);
  }

  double first_size(std::string_view name) const {
    const auto v = node_.get<ValueId>(name, {});
    if (!v.defined() || graph_.type(v).shape.empty()) return 1;
    return static_cast<double>(graph_.type(v).shape[0]);
  }

 private:
  double numel(ValueId v) const {
    return v.defined() ? static_cast<double>(graph_.type(v).numel()) : 0;
  }

  const Graph& graph_;
  const Node& node_;
};

using Rule = double (*)(const Sizes&);

// Multiplications and additions of one pass over a convolution: every element of the side without
// kernel taps (the result, or the input of a transposed convolution) meets weight.numel /
// weight.shape[0] weights.
double convolution(const Sizes& s, double result) {
  const bool transposed = s.node().get<bool>("transposed", false);
  const double side = transposed ? s.operand("input") : result;
  return 2 * side * s.operand("weight") / std::max(1.0, s.first_size("weight"));
}

double convolution_backward(const Sizes& s) {
  const auto mask = s.node().get<std::vector<bool>>("output_mask", {true, true, true});
  double flops = 0;
  for (size_t i = 0; i < 2 && i < mask.size(); ++i) {
    if (mask[i]) flops += convolution(s, s.operand("grad_output"));
  }
  return flops;
}

// b * h * s * t, halved where the upper triangle is never computed.
double scores(const Sizes& s) {
  const double all = s.operand("query") / std::max(1.0, s.size_from_end("query", 1)) *
                     s.size_from_end("key", 2);
  return s.node().get<bool>("causal", false) ? all / 2 : all;
}

double zero(const Sizes&) { return 0; }
double input_elements(const Sizes& s) { return s.operand("self"); }
double matrix_product(const Sizes& s) { return 2 * s.result() * s.size_from_end("self", 1); }
double matrix_product_in_place(const Sizes& s) {
  return 2 * s.operand("sum") * s.size_from_end("self", 1);
}
// One outer product of a column and a row for each place of each expert.
double grouped_outer(const Sizes& s) { return 2 * s.operand("self") * s.size_from_end("grad", 1); }
double matrix_product_and_sum(const Sizes& s) {
  return 2 * s.result() * s.size_from_end("batch1", 1) * s.size_from_end("mat1", 1) + s.result();
}
double softmax(const Sizes& s) { return 5 * s.result(); }

const std::unordered_map<std::string_view, Rule>& rules() {
  static const std::unordered_map<std::string_view, Rule> table = [] {
    std::unordered_map<std::string_view, Rule> t;
    t["perigee::grouped_mm"] = matrix_product;
    t["perigee::grouped_outer"] = grouped_outer;
    for (auto op :
         {"aten::mm", "aten::bmm", "aten::mv", "aten::dot", "aten::vdot", "aten::_scaled_mm"}) {
      t[op] = matrix_product;
    }
    for (auto op : {"aten::addmm", "aten::baddbmm"}) t[op] = matrix_product_and_sum;
    for (auto op : {"perigee::addmm_", "perigee::mm_"}) t[op] = matrix_product_in_place;
    t["perigee::mm_gelu"] = t["perigee::mm_gelu_backward"] = [](const Sizes& s) {
      const double elements = s.operand("self") / std::max(1.0, s.size_from_end("self", 1)) *
                              s.size_from_end("mat2", 1);
      return elements * (2 * s.size_from_end("self", 1) + 1);
    };
    t["aten::addmv"] = [](const Sizes& s) {
      return s.result() * (2 * s.size_from_end("mat", 1) + 1);
    };
    for (auto op : {"aten::convolution", "aten::convolution_overrideable"}) {
      t[op] = [](const Sizes& s) {
        const double bias = s.operand("bias") > 0 ? s.result() : 0;
        return convolution(s, s.result()) + bias;
      };
    }
    for (auto op : {"aten::convolution_backward", "aten::convolution_backward_overrideable"}) {
      t[op] = convolution_backward;
    }
    t["perigee::attention"] = [](const Sizes& s) {
      return 2 * scores(s) * (s.size_from_end("query", 1) + s.size_from_end("value", 1));
    };
    t["perigee::attention_backward"] = [](const Sizes& s) {
      return 2 * scores(s) * (3 * s.size_from_end("query", 1) + 2 * s.size_from_end("value", 1));
    };
    for (auto op : {"aten::_softmax", "aten::_log_softmax", "aten::_softmax_backward_data",
                    "aten::_log_softmax_backward_data"}) {
      t[op] = softmax;
    }
    for (auto op : {"perigee::cross_entropy", "perigee::cross_entropy_backward"}) {
      t[op] = [](const Sizes& s) { return 5 * s.operand("logits"); };
    }
    for (auto op : {"aten::native_layer_norm", "aten::native_group_norm", "aten::native_batch_norm",
                    "aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional",
                    "aten::_native_batch_norm_legit.no_stats", "perigee::rms_norm",
                    "aten::native_layer_norm_backward", "aten::native_group_norm_backward",
                    "aten::native_batch_norm_backward", "perigee::rms_norm_backward",
                    "perigee::add_rms_norm", "perigee::rms_norm_backward_add",
                    "perigee::add_layer_norm", "perigee::layer_norm_backward_add"}) {
      t[op] = [](const Sizes& s) { return 8 * (s.operand("input") + s.operand("self")); };
    }
    for (auto op :
         {"aten::sum", "aten::sum.dim_IntList", "aten::mean", "aten::mean.dim", "aten::amax",
          "aten::amin", "aten::max", "aten::min", "aten::max.dim", "aten::min.dim", "aten::argmax",
          "aten::argmin", "aten::prod", "aten::prod.dim_int", "aten::var.correction",
          "aten::std.correction", "aten::linalg_vector_norm", "aten::logsumexp", "aten::cumsum"}) {
      t[op] = input_elements;
    }
    for (auto op : {"perigee::reshape",
                    "perigee::full",
                    "perigee::cast",
                    "perigee::step_average",
                    "perigee::step_share",
                    "perigee::reduction",
                    "perigee::nll",
                    "perigee::nll_backward",
                    "perigee::label_weight",
                    "aten::clone",
                    "aten::copy",
                    "aten::cat",
                    "aten::stack",
                    "aten::embedding",
                    "aten::embedding_dense_backward",
                    "perigee::embedding_backward_",
                    "aten::index_select",
                    "aten::gather",
                    "aten::index.Tensor",
                    "aten::slice_backward",
                    "aten::select_backward",
                    "aten::constant_pad_nd",
                    "aten::arange",
                    "aten::arange.start",
                    "aten::arange.start_step",
                    "aten::flip",
                    "aten::roll",
                    "aten::repeat",
                    "aten::tril",
                    "aten::triu",
                    "aten::max_pool2d_with_indices_backward",
                    "aten::one_hot",
                    "aten::slice_scatter",
                    "aten::select_scatter",
                    "aten::diagonal_backward"}) {
      t[op] = zero;
    }
    return t;
  }();
  return table;
}

}  // namespace

double flops_of(const Graph& graph, const Node& node) {
  if (is_view(node.op) || is_collective(node.op)) return 0;
  const Sizes sizes(graph, node);
  const auto rule = rules().find(node.op);
  return rule == rules().end() ? sizes.result() : rule->second(sizes);
}

int64_t bytes_of(const Graph& graph, const Node& node) {
  int64_t bytes = 0;
  node.each_operand([&](ValueId v) { bytes += graph.type(v).bytes(); });
  for (auto v : node.outputs) {
    if (v.defined()) bytes += graph.type(v).bytes();
  }
  return bytes;
}

}  // namespace perigee::graph
