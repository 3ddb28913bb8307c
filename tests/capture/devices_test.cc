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

// The ops that the compiler makes have shapes for models that call them, too.
TEST_CASE("norms of sums, and gradients with sums, have the types of their separate ops") {
  const auto x = normal({3, 4, 16}).to(torch::kBFloat16);
  const auto row = torch::ones({3, 4, 1}), last = normal({16}).to(torch::kBFloat16);
  using Types = std::vector<graph::TensorType>;
  const graph::TensorType whole{graph::DType::bfloat16, {3, 4, 16}},
      statistic{graph::DType::float32, {3, 4, 1}}, of_last{graph::DType::bfloat16, {16}};
  const std::vector<int64_t> shape = {16};
  const std::vector<bool> mask = {true, true, true};
  struct Op {
    std::string name;
    std::vector<c10::IValue> values;
    Types types;
  };
  for (const auto& op :
       std::vector<Op>{{"add_rms_norm", {x, x, last, 1e-5}, {whole, whole, statistic}},
                       {"rms_norm_backward_add", {x, x, last, row, x}, {whole, of_last}},
                       {"add_layer_norm",
                        {x, x, shape, last, last, 1e-5},
                        {whole, whole, statistic, statistic}},
                       {"layer_norm_backward_add",
                        {x, x, shape, row, row, last, last, mask, x},
                        {whole, of_last, of_last}},
                       {"gelu_backward_sum", {x, x, "tanh"}, {whole, of_last}}}) {
    INFO(op.name);
    std::vector<at::Tensor> inputs;
    for (const auto& value : op.values) {
      if (value.isTensor()) inputs.push_back(value.toTensor());
    }
    inputs.push_back(torch::ones({}));  // for a loss; the op alone has no derivative
    const auto run = [op](const std::vector<at::Tensor>& in) {
      auto stack = op.values;
      size_t next = 0;
      for (auto& value : stack) {
        if (value.isTensor()) value = in[next++].detach();
      }
      c10::Dispatcher::singleton()
          .findSchemaOrThrow(("perigee::" + op.name).c_str(), "")
          .callBoxed(stack);
      std::vector<at::Tensor> results;
      for (const auto& value : stack) results.push_back(value.toTensor());
      results.push_back(in.back() * 1);
      return results;
    };
    const Layer layer{op.name, nullptr, inputs, run};
    const auto graph = graph_of(layer);
    const auto nodes = nodes_of(graph, "perigee::" + op.name);
    REQUIRE(nodes.size() == 1);
    Types types;
    for (const auto v : nodes[0]->outputs) types.push_back(graph.type(v));
    CHECK((types == op.types));
  }
}

}  // namespace
}  // namespace perigee::test
