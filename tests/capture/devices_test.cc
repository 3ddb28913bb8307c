// Ops whose kernels on the CPU and on a GPU give results of other types or shapes: a graph is the
// same for both.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/normalization.h>

#include "graph/graph.h"
#include "tests/capture/support.h"

namespace nn = torch::nn;

namespace perigee::test {
namespace {

// Returns the captured graph of a layer.
graph::Graph graph_of(const Layer& layer) {
  const auto model = model_of(layer);
  return std::move(capture(*model.module, model.batch, model.forward).graph);
}

std::vector<const graph::Node*> nodes_of(const graph::Graph& graph, const std::string& op) {
  std::vector<const graph::Node*> found;
  for (const auto& node : graph.nodes) {
    if (node.op == op) found.push_back(&node);
  }
  return found;
}

TEST_CASE("log_sigmoid keeps no buffer, which LibTorch leaves empty on a GPU") {
  const auto wide = layer<1>(
      "LogSigmoid", nn::LogSigmoid(),
      {torch::tensor({-800.0, -50.0, -41.0, -39.0, -1.0, 0.0, 1.0, 45.0}, torch::kFloat64)});
  const auto graph = graph_of(wide);
  CHECK(nodes_of(graph, "aten::log_sigmoid_forward").empty());
  CHECK(nodes_of(graph, "aten::log_sigmoid_backward").empty());
  CHECK(nodes_of(graph, "aten::softplus").size() == 1);
  check_layer(wide);
}

TEST_CASE("layer norm of bfloat16 has float32 statistics, as a GPU's kernel") {
  for (const bool affine : {true, false}) {
    auto norm = nn::LayerNorm(nn::LayerNormOptions({16}).elementwise_affine(affine));
    auto low = layer<1>("LayerNorm", norm, {normal({3, 16})});
    norm->to(torch::kBFloat16);
    low.inputs[0] = low.inputs[0].to(torch::kBFloat16);
    const auto graph = graph_of(low);
    const auto nodes = nodes_of(graph, "aten::native_layer_norm");
    REQUIRE(nodes.size() == 1);
    CHECK(graph.type(nodes[0]->outputs.at(0)).dtype == graph::DType::bfloat16);
    for (const size_t statistic : {1, 2}) {
      const auto value = nodes[0]->outputs.at(statistic);
      REQUIRE(value.defined());
      CHECK(graph.type(value).dtype == graph::DType::float32);
    }
    check_layer(low, 3e-2);
  }
}

}  // namespace
}  // namespace perigee::test
