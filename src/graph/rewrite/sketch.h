// Builds the pattern or the replacement of a built-in rule op by op. Private to rewrite/.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "graph/rewrite/rewrite.h"

namespace perigee::graph {

using Args = std::vector<std::pair<std::string, Arg>>;
using Shape = std::vector<int64_t>;

// One joint graph under construction. Tensors are float32 unless a dtype is given.
class Sketch {
 public:
  ValueId parameter(const std::string& name, Shape shape) {
    return graph.add_input(Input::Kind::parameter, name, {DType::float32, std::move(shape)});
  }
  ValueId data(const std::string& name, Shape shape, DType dtype = DType::float32) {
    return graph.add_input(Input::Kind::data, name, {dtype, std::move(shape)});
  }
  ValueId op(const std::string& name, Args args, Shape shape, DType dtype = DType::float32) {
    return graph.add_node(name, std::move(args), {{dtype, std::move(shape)}})[0];
  }
  // Adds a backward op that differentiates the forward op of the value `of`.
  ValueId back(ValueId of, const std::string& name, Args args, Shape shape) {
    return several(of, name, std::move(args), {{DType::float32, std::move(shape)}})[0];
  }
  // Adds such a backward op with several results.
  std::vector<ValueId> several(ValueId of, const std::string& name, Args args,
                               std::vector<TensorType> types) {
    const auto made = graph.add_node(name, std::move(args), std::move(types), "", Phase::backward);
    graph.nodes.back().forward_node = graph.values[of.index].producer;
    return made;
  }
  void result(ValueId v, const std::string& name = "y") {
    graph.outputs.push_back({Output::Kind::result, name, v});
  }
  void gradient(const std::string& name, ValueId v) {
    graph.outputs.push_back({Output::Kind::gradient, name, v});
  }

  // The arguments of a binary op: two tensors, or a tensor and a number.
  static Args both(ValueId a, ValueId b) { return {{"self", a}, {"other", b}}; }
  static Args with(ValueId a, Arg b) { return {{"self", a}, {"other", std::move(b)}}; }

  Graph graph;
};

void add_norm_fusions(std::vector<RewriteRule>& rules);
void add_attention_fusions(std::vector<RewriteRule>& rules);
void add_loss_fusions(std::vector<RewriteRule>& rules);
void add_rotary_fusions(std::vector<RewriteRule>& rules);
void add_swiglu_fusions(std::vector<RewriteRule>& rules);

}  // namespace perigee::graph
