// The pass chunk_loss on graphs of a head and its loss.
#include "compile/graph/chunk_loss.h"

#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "base/error.h"

using namespace perigee;
using Catch::Contains;
using graph::Graph;

namespace {

constexpr const char* kHead = R"(perigee.graph/1
scope "" Mlp
scope head Linear
input parameter %0: float32[5, 3] = head.weight
input parameter %1: float32[5] = head.bias
input data %2: float32[8, 3] = x
input data %3: int64[8] = y
%4: float32[3, 5] = aten::t(self=%0)   @head forward
%5: float32[8, 5] = aten::addmm(self=%1, mat1=%2, mat2=%4)   @head forward
)";

constexpr const char* kLoss = R"(
%6: float32[8], %7: float32[8] = perigee::cross_entropy(logits=%5, target=%3)   @ forward
%8: float32[] = perigee::label_weight(target=%3, dtype=float32)   @ forward
%9: float32[] = perigee::step_average(self=%8)   @ forward
%10: float32[] = aten::sum(self=%6)   @ forward
%11: float32[] = aten::div.Tensor(self=%10, other=%9)   @ forward
)";

constexpr const char* kGradient = R"(%12: float32[] = perigee::full(value=1.0)   @ backward
%13: float32[] = aten::div.Tensor(self=%12, other=%9)   @ backward of %11
)";

constexpr const char* kBackward = R"(%14: float32[8] = perigee::expand(self=%13)   @ backward of %10
%15: float32[8, 5] = perigee::cross_entropy_backward(grad=%14, logits=%5, target=%3, logsumexp=%7)   @ backward of %6
%16: float32[5, 8] = aten::t(self=%15)   @head backward of %5
%17: float32[5, 3] = aten::mm(self=%16, mat2=%2)   @head backward of %5
%18: float32[1, 5] = aten::sum.dim_IntList(self=%15, dim=[0], keepdim=true)   @head backward of %5
%19: float32[5] = perigee::reshape(self=%18)   @head backward of %5
)";

constexpr const char* kOutputs = R"(output loss %11 = loss
output gradient %17 = head.weight
output gradient %19 = head.bias
)";

// Joins parts of a graph's text, without the empty lines between them.
Graph graph_of(std::initializer_list<std::string> parts) {
  std::string text;
  for (auto part : parts) {
    if (part.starts_with('\n')) part.erase(0, 1);
    text += part;
  }
  auto graph = graph::parse(text);
  graph::verify(graph);
  return graph;
}

Graph head() { return graph_of({kHead, kLoss, kGradient, kBackward, kOutputs}); }

std::vector<const graph::Node*> nodes_of(const Graph& graph, const std::string& op) {
  std::vector<const graph::Node*> found;
  for (const auto& node : graph.nodes) {
    if (node.op == op) found.push_back(&node);
  }
  return found;
}

std::string why_not(const Graph& graph) {
  try {
    compile::chunk_loss(graph, 2);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a chunk's logits are made, used and dropped before the next chunk's") {
  const auto chunked = compile::chunk_loss(head(), 3);
  graph::verify(chunked);
  std::vector<std::string> order;
  std::vector<int64_t> rows;
  for (const auto& node : chunked.nodes) {
    for (const char* op : {"aten::addmm", "perigee::cross_entropy_backward", "aten::mm"}) {
      if (node.op == op) order.emplace_back(op);
    }
    if (node.op == "aten::addmm") rows.push_back(chunked.type(node.outputs[0]).shape[0]);
  }
  std::vector<std::string> expected;
  for (int k = 0; k < 3; ++k) {
    for (const char* op : {"aten::addmm", "perigee::cross_entropy_backward", "aten::mm"}) {
      expected.emplace_back(op);
    }
  }
  CHECK(order == expected);
  CHECK(rows == std::vector<int64_t>{2, 3, 3});
  // The head, its loss and what follows belong to the backward pass; its input to the forward pass.
  for (const char* op : {"aten::addmm", "perigee::cross_entropy", "aten::sum"}) {
    for (const auto* node : nodes_of(chunked, op)) {
      CHECK(node->phase == graph::Phase::backward);
      CHECK(chunked.nodes[node->forward_node].op == "perigee::reshape");
    }
  }
  // The losses are joined, the gradients of the weight and of the bias are sums of three.
  CHECK(nodes_of(chunked, "aten::cat").size() == 1);
  CHECK(nodes_of(chunked, "aten::add.Tensor").size() == 4);
  for (const auto& output : chunked.outputs) CHECK(output.value.defined());
}

TEST_CASE("a microbatch with fewer rows than chunks has a chunk for each row") {
  CHECK(nodes_of(compile::chunk_loss(head(), 100), "aten::addmm").size() == 8);
}

TEST_CASE("the forward pass alone is chunked, too, unless its logits are returned") {
  const auto loss = graph_of({kHead, kLoss, "output loss %11 = loss\n"});
  const auto chunked = compile::chunk_loss(loss, 2);
  CHECK(nodes_of(chunked, "aten::addmm").size() == 2);
  for (const auto& node : chunked.nodes) CHECK(node.phase == graph::Phase::forward);
  const auto both = graph_of({kHead, kLoss, "output loss %11 = loss\noutput result %5 = logits\n"});
  CHECK(compile::chunk_loss(both, 2) == both);
}

TEST_CASE("a training step that cannot be chunked says which op prevents it") {
  CHECK_THAT(why_not(graph_of(
                 {kHead, kLoss, kGradient, kBackward, kOutputs, "output result %5 = logits\n"})),
             Contains("returns its logits, as \"logits\""));
  // The gradient is that of the loss's logarithm.
  CHECK_THAT(
      why_not(graph_of({kHead, kLoss,
                        "%12: float32[] = perigee::full(value=1.0)   @ backward\n"
                        "%13: float32[] = aten::div.Tensor(self=%12, other=%11)   @ backward\n",
                        kBackward, kOutputs})),
      Contains("depends on the loss"));
  // A softmax over the rows.
  const std::string combined =
      "%6: float32[8, 5] = aten::_softmax(self=%5, dim=0, half_to_float=false)   @ forward\n"
      "%7: float32[] = aten::sum(self=%6)   @ forward\n"
      "%8: float32[8, 5] = perigee::expand(self=%7)   @ backward\n"
      "%9: float32[8, 3] = aten::mm(self=%8, mat2=%0)   @head backward\n"
      "%10: float32[3, 8] = aten::t(self=%9)   @head backward\n"
      "%11: float32[3, 5] = aten::mm(self=%10, mat2=%6)   @head backward\n"
      "%12: float32[5, 3] = aten::t(self=%11)   @head backward\n"
      "output loss %7 = loss\noutput gradient %12 = head.weight\n";
  CHECK_THAT(why_not(graph_of({kHead, combined})), Contains("aten::_softmax"));
  const std::string alone =
      "%6: float32[] = aten::sum(self=%2)   @ forward\n"
      "output loss %6 = loss\noutput gradient %1 = head.bias\n";
  CHECK_THAT(why_not(graph_of({kHead, alone})), Contains("no product makes its logits"));
}
