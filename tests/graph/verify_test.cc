// Graphs that the verifier refuses.
#include <catch2/catch.hpp>
#include <functional>

#include "base/error.h"
#include "tests/graph/support.h"

using namespace perigee;
using namespace perigee::graph;

namespace {

// Returns the verifier's message for two_layers() after the change; "" if it accepts the graph.
std::string after(const std::function<void(Graph&)>& change) {
  Graph g = two_layers();
  change(g);
  try {
    verify(g);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("a valid graph passes the verifier") {
  CHECK(after([](Graph&) {}) == "no error");
  verify(Graph{});
}

TEST_CASE("the verifier names the broken invariant") {
  using G = Graph&;
  CHECK(after([](G g) { g.values[4].type.shape[0] = -2; }) ==
        "[graph] sizes are at least 0, but %4 has a size of -2");
  CHECK(after([](G g) { g.values[4].type.shape = {int64_t{1} << 61}; }) ==
        "[graph] a tensor has less than 2^63 bytes, but %4 has more");
  CHECK(after([](G g) {
          g.values[3].type.shape = {int64_t{1} << 57};
          g.values[4].type.shape = {int64_t{1} << 57};
        }) ==
        "[graph] the tensors of a step have up to 2^60 bytes together, but those up to %4 have "
        "more: make the model or its batch smaller");
  CHECK(after([](G g) {
          g.scopes.push_back({"fc1", "Linear"});
        }) == "[graph] scopes are listed once, but \"fc1\" occurs twice");
  CHECK(after([](G g) {
          g.scopes.push_back({"a.b", "Linear"});
        }) == "[graph] a scope follows its parent, but \"a.b\" has none before it");
  CHECK(after([](G g) { g.inputs[0].value = {}; }) ==
        "[graph] inputs have values, but parameter \"fc1.weight\" has value %-1 of 16");
  CHECK(after([](G g) { g.inputs[1].name = "x"; }) ==
        "[graph] inputs have distinct names, but data %2 is called \"x\" as another one");
  CHECK(after([](G g) { g.inputs[1].name = ""; }) ==
        "[graph] inputs have distinct names, but parameter %1 is called \"\"");
  CHECK(after([](G g) { g.inputs[1].value = {0}; }) ==
        "[graph] a value has one producer, but parameter \"fc2.weight\" shares %0");
  CHECK(after([](G g) { g.inputs[0].data = "abc"; }) ==
        "[graph] parameter \"fc1.weight\" holds 0 bytes, but got 3");
  CHECK(after([](G g) { g.inputs[2].kind = Input::Kind::constant; }) ==
        "[graph] constant \"x\" holds 64 bytes, but got 0");
  CHECK(after([](G g) { g.nodes[1].op = ""; }) ==
        "[graph] nodes have ops, but node 1 ( in scope \"fc1\") has none");
  CHECK(after([](G g) { g.nodes[1].scope = "fc3"; }) ==
        "[graph] scopes are listed, but that of node 1 (aten::mm in scope \"fc3\") is not");
  CHECK(after([](G g) { g.nodes[7].forward_node = 7; }) ==
        "[graph] a backward node follows its forward node, but node 7 (aten::t in scope \"fc2\") "
        "names node 7");
  CHECK(after([](G g) { g.nodes[1].args[1].first = "self"; }) ==
        "[graph] arguments are given once, but node 1 (aten::mm in scope \"fc1\") has self twice");
  CHECK(after([](G g) { g.nodes[1].args[1].second = ValueId{99}; }) ==
        "[graph] operands are values of the graph, but mat2 of node 1 (aten::mm in scope \"fc1\") "
        "is %99 of 16");
  CHECK(after([](G g) { g.nodes[1].args[1].second = ValueId{5}; }) ==
        "[graph] values are made before they are used, but mat2 of node 1 (aten::mm in scope "
        "\"fc1\") is %5");
  CHECK(after([](G g) {
          g.nodes[1].args[1].second = std::vector<ValueId>{{0}, {4}};
        }) ==
        "[graph] values are made before they are used, but mat2 of node 1 (aten::mm in scope "
        "\"fc1\") is %4");
  CHECK(after([](G g) { g.nodes[1].outputs[0] = {99}; }) ==
        "[graph] results are values of the graph, but node 1 (aten::mm in scope \"fc1\") makes "
        "%99 of 16");
  CHECK(after([](G g) { g.nodes[1].outputs[0] = {0}; }) ==
        "[graph] a value has one producer, but node 1 (aten::mm in scope \"fc1\") makes %0 a "
        "second time");
  CHECK(after([](G g) { g.values[4].producer = 3; }) ==
        "[graph] a value names its producer, but %4 of node 1 (aten::mm in scope \"fc1\") names "
        "result 0 of node 3");
  CHECK(after([](G g) { g.add_value({}); }) ==
        "[graph] an input or a node makes every value, but nothing makes %16");
  CHECK(after([](G g) { g.outputs[0].value = {}; }) ==
        "[graph] outputs are values of the graph, but loss \"loss\" is %-1 of 16");
  CHECK(after([](G g) { g.outputs[2].name = "fc1.weight"; }) ==
        "[graph] outputs are listed once, but gradient \"fc1.weight\" occurs twice");
  CHECK(after([](G g) {
          g.outputs.push_back({Output::Kind::loss, "more", {8}});
        }) == "[graph] a graph has one loss, but got another, \"more\"");
  CHECK(after([](G g) { g.outputs[0].value = {7}; }) ==
        "[graph] the loss is a floating scalar, but got float32[2, 4]");
  CHECK(after([](G g) { g.outputs[2].name = "fc3.weight"; }) ==
        "[graph] a gradient output belongs to a parameter, but there is none called "
        "\"fc3.weight\"");
  CHECK(after([](G g) { g.outputs[2].value = {15}; }) ==
        "[graph] the gradient output of \"fc2.weight\" is float32[4, 16], but got float32[16, 8]");
  CHECK(after([](G g) {
          g.inputs[0].kind = Input::Kind::buffer;
          g.outputs[1].kind = Output::Kind::buffer;
          g.values[15].type.dtype = DType::float64;
        }) ==
        "[graph] the buffer output of \"fc1.weight\" is float32[16, 8], but got float64[16, 8]");
}

TEST_CASE("an argument of a wrong type is an error, and a missing one or None has its default") {
  const Node node{"aten::x", {{"n", int64_t{3}}, {"none", std::monostate{}}}, {}, "a", {}, -1};
  CHECK(node.get<int64_t>("n", 0) == 3);
  CHECK(node.get<double>("n", 0) == 3.0);
  CHECK(node.get<int64_t>("m", 7) == 7);
  CHECK(node.get<ValueId>("none", {}) == ValueId{});
  CHECK_THROWS_WITH(node.get<bool>("n", false),
                    "[graph] argument n of aten::x in scope \"a\" is a bool, but got int");
}
