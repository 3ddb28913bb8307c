// Structural hash, value names, differences and graph passes.
#include <catch2/catch.hpp>
#include <functional>

#include "graph/flops.h"
#include "graph/ops.h"
#include "tests/graph/support.h"

using namespace perigee;
using namespace perigee::graph;

TEST_CASE("the hash does not depend on the numbering of values") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    INFO("seed " << seed);
    const Graph g = random_graph(seed, 20);
    CHECK(structural_hash(shuffle_values(g, seed + 1)) == structural_hash(g));
    CHECK(difference(shuffle_values(g, seed + 1), g) == "");
    Graph more = g;
    more.add_value({DType::float32, {9}});
    CHECK(structural_hash(more) == structural_hash(g));
  }
  CHECK(structural_hash(two_layers()).size() == 32);
}

TEST_CASE("every change of a graph changes its hash and is reported as a difference") {
  using G = Graph&;
  const std::pair<std::function<void(G)>, std::string> changes[] = {
      {[](G g) { g.nodes[1].op = "aten::mv"; },
       "the first node that differs is number 1\n"
       "  first:  %fc1/mm.0: float32[2, 16] = aten::mm(self=%x, mat2=%fc1/t.0)   @fc1 forward\n"
       "  second: %fc1/mv.0: float32[2, 16] = aten::mv(self=%x, mat2=%fc1/t.0)   @fc1 forward\n"},
      {[](G g) { g.nodes[1].args[0].first = "other"; },
       "the first node that differs is number 1\n"},
      {[](G g) { g.nodes[6].args[0].second = 1.5; }, "the first node that differs is number 6\n"},
      {[](G g) { g.nodes[6].args[0].second = int64_t{1}; },
       "the first node that differs is number 6\n"},
      {[](G g) { g.nodes[6].args.clear(); }, "the first node that differs is number 6\n"},
      {[](G g) { g.nodes[9].args[1].second = ValueId{11}; },
       "the first node that differs is number 9\n"},
      {[](G g) { g.nodes[4].scope = "fc1"; }, "the first node that differs is number 4\n"},
      {[](G g) { g.nodes[7].phase = Phase::forward; }, "the first node that differs is number 7\n"},
      {[](G g) { g.nodes[7].forward_node = 3; }, "the first node that differs is number 7\n"},
      {[](G g) { g.values[4].type.dtype = DType::float16; },
       "the first node that differs is number 1\n"},
      {[](G g) { g.values[4].type.shape[1] = 17; }, "the first node that differs is number 1\n"},
      {[](G g) { g.values[0].type.shape[0] = 17; },
       "parameter fc1.weight: float32[16, 8] became float32[17, 8]\n"},
      {[](G g) { g.inputs[0].trainable = false; },
       "parameter fc1.weight: float32[16, 8] became float32[16, 8] frozen\n"},
      {[](G g) { g.inputs[2].batched = false; },
       "data x: float32[2, 8] became float32[2, 8] unbatched\n"},
      {[](G g) { g.inputs[0].name = "w"; },
       "parameter fc1.weight: float32[16, 8], only in the first graph\n"
       "parameter w: float32[16, 8], only in the second graph\n"},
      {[](G g) { g.inputs[0].kind = Input::Kind::buffer; },
       "parameter fc1.weight: float32[16, 8], only in the first graph\n"},
      {[](G g) { g.inputs[2].data = "a"; },
       "data x: float32[2, 8] became float32[2, 8] with bytes "},
      {[](G g) { std::swap(g.inputs[0], g.inputs[1]); }, "the same parts in another order\n"},
      {[](G g) { std::swap(g.scopes[1], g.scopes[2]); }, "the same parts in another order\n"},
      {[](G g) { g.scopes[1].type = "Lazy"; }, "scope fc1: Linear became Lazy\n"},
      {[](G g) { g.outputs[0].value = {12}; }, "output loss loss: /sum.0 became fc2/'mm.1\n"},
      {[](G g) { g.outputs.pop_back(); },
       "output gradient fc2.weight: fc2/'mm.0, only in the first graph\n"},
      {[](G g) {
         g.add_node("aten::relu", {{"self", ValueId{4}}}, {g.type({4})});
       },
       "13 nodes became 14\n"},
  };
  const Graph g = two_layers();
  for (const auto& [change, expected] : changes) {
    INFO(expected);
    Graph changed = two_layers();
    change(changed);
    CHECK(structural_hash(changed) != structural_hash(g));
    CHECK(difference(g, changed).substr(0, expected.size()) == expected);
  }
}

TEST_CASE("a difference has at most ten lines") {
  Graph a, b;
  for (int i = 0; i < 30; ++i) {
    a.add_input(Input::Kind::data, "a" + std::to_string(i), {});
    b.add_input(Input::Kind::data, "b" + std::to_string(i), {});
  }
  const auto text = difference(a, b);
  CHECK(std::count(text.begin(), text.end(), '\n') == 10);
  CHECK(text.find("... and 51 more\n") != std::string::npos);
}

TEST_CASE("names of values are stable under renumbering") {
  const Graph g = two_layers();
  const auto names = value_names(g);
  CHECK(names[0] == "fc1.weight");
  CHECK(names[4] == "fc1/mm.0");
  CHECK(names[5] == "/relu.0");
  CHECK(names[11] == "fc2/'mm.0");
  CHECK(names[12] == "fc2/'mm.1");
  CHECK(names[13] == "/'threshold_backward.0");
  const Graph shuffled = shuffle_values(g, 3);
  const auto other = value_names(shuffled);
  for (size_t i = 0; i < g.nodes.size(); ++i) {
    CHECK(names[g.nodes[i].outputs[0].index] == other[shuffled.nodes[i].outputs[0].index]);
  }
  Graph two;
  two.add_node("aten::max.dim", {}, {{}, {}}, "a");
  CHECK(value_names(two) == std::vector<std::string>{"a/max.0", "a/max.0:1"});
}

TEST_CASE("dead code is removed, parameters and sends are not") {
  Graph g = two_layers();
  const auto constant = g.add_input(Input::Kind::constant, "c", {DType::uint8, {1}});
  g.inputs.back().data = "x";
  g.add_input(Input::Kind::parameter, "unused", {});
  const auto dead = g.add_node("aten::relu", {{"self", constant}}, {{DType::uint8, {1}}});
  g.add_node("aten::relu", {{"self", dead[0]}}, {{DType::uint8, {1}}});
  g.add_node("comm::send", {{"self", ValueId{4}}}, {});
  g.add_value({});
  g.outputs.erase(g.outputs.begin() + 1);  // fc1.weight's gradient; four nodes become dead
  const Graph after = eliminate_dead_code(g);
  verify(after);
  CHECK(after.nodes.size() == 10);
  CHECK(after.nodes.back().op == "comm::send");
  CHECK(after.inputs.size() == 4);
  CHECK(after.find_input("unused"));
  CHECK(!after.find_input("c"));
  CHECK(after.nodes[8].op == "aten::mm");
  CHECK(after.nodes[8].forward_node == 4);
  CHECK(eliminate_dead_code(two_layers()) == two_layers());
}

TEST_CASE("equal nodes are merged within a scope and phase") {
  Graph g;
  g.scopes = {{"", "Net"}, {"a", "Block"}};
  const auto x = g.add_input(Input::Kind::data, "x", {DType::float32, {2}});
  const auto call = [&](std::string op, ValueId self, std::string scope, int64_t key, Phase phase) {
    return g.add_node(op, {{"self", self}, {"key", key}}, {g.type(self)}, scope, phase)[0];
  };
  using enum Phase;
  const auto r1 = call("aten::relu", x, "", 0, forward);
  const auto r2 = call("aten::relu", x, "", 0, forward);
  const auto e1 = call("aten::exp", r1, "", 0, forward);
  const auto e2 = call("aten::exp", r2, "", 0, forward);
  const auto d1 = call("perigee::dropout", x, "", 1, forward);
  const auto d2 = call("perigee::dropout", x, "", 2, forward);
  const auto other = call("aten::relu", x, "a", 0, forward);
  const auto c1 = call("comm::receive", x, "", 0, forward);
  const auto c2 = call("comm::receive", x, "", 0, forward);
  const auto back = call("aten::relu", x, "", 0, backward);
  g.nodes.back().forward_node = 3;
  const ValueId all[] = {r1, r2, e1, e2, d1, d2, other, c1, c2, back};
  for (auto v : all) g.outputs.push_back({Output::Kind::result, "r" + std::to_string(v.index), v});
  verify(g);
  const Graph after = eliminate_common_subexpressions(g);
  verify(after);
  CHECK(after.nodes.size() == 8);
  CHECK(after.outputs[0].value == after.outputs[1].value);
  CHECK(after.outputs[2].value == after.outputs[3].value);
  CHECK(after.nodes.back().forward_node == 1);
  for (size_t i = 4; i < 10; ++i) CHECK(after.outputs[i].value != after.outputs[i - 1].value);
}

TEST_CASE("random graphs pass the verifier after every pass") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    INFO("seed " << seed);
    const Graph g = random_graph(seed, 30);
    const Graph merged = eliminate_common_subexpressions(shuffle_values(g, seed));
    verify(merged);
    const Graph alive = eliminate_dead_code(merged);
    verify(alive);
    CHECK(eliminate_dead_code(alive) == alive);
    CHECK(eliminate_common_subexpressions(alive) == alive);
  }
}

TEST_CASE("operations of matrix products, convolutions and attention are exact") {
  Graph g;
  const auto in = [&](std::string name, std::vector<int64_t> shape) {
    return g.add_input(Input::Kind::data, name, {DType::float32, shape});
  };
  const auto flops = [&](std::string op, std::vector<std::pair<std::string, Arg>> args,
                         std::vector<int64_t> shape) {
    g.add_node(op, args, {{DType::float32, shape}});
    return flops_of(g, g.nodes.back());
  };
  CHECK(flops("aten::mm", {{"self", in("a", {2, 3})}, {"mat2", in("b", {3, 5})}}, {2, 5}) == 60);
  CHECK(flops("aten::addmm",
              {{"self", in("c", {5})}, {"mat1", in("d", {2, 3})}, {"mat2", in("e", {3, 5})}},
              {2, 5}) == 70);
  CHECK(flops("aten::bmm", {{"self", in("f", {4, 2, 3})}, {"mat2", in("g", {4, 3, 5})}},
              {4, 2, 5}) == 240);
  CHECK(
      flops(
          "aten::baddbmm",
          {{"self", in("h", {5})}, {"batch1", in("i", {4, 2, 3})}, {"batch2", in("j", {4, 3, 5})}},
          {4, 2, 5}) == 280);
  const auto x = in("x", {1, 4, 8, 8});
  const auto w = in("w", {6, 2, 3, 3});  // two groups
  CHECK(flops("aten::convolution", {{"input", x}, {"weight", w}}, {1, 6, 6, 6}) == 2 * 216 * 18);
  const auto wt = in("wt", {4, 3, 3, 3});
  CHECK(flops("aten::convolution", {{"input", x}, {"weight", wt}, {"transposed", true}},
              {1, 3, 10, 10}) == 2 * 256 * 27);
  const auto grad = in("grad", {1, 6, 6, 6});
  CHECK(flops("aten::convolution_backward",
              {{"grad_output", grad},
               {"input", x},
               {"weight", w},
               {"output_mask", std::vector<bool>{true, true, false}}},
              {1, 4, 8, 8}) == 2 * 2 * 216 * 18);
  const auto q = in("q", {2, 4, 16, 8}), k = in("k", {2, 2, 32, 8}), v = in("v", {2, 2, 32, 10});
  const std::vector<std::pair<std::string, Arg>> args = {{"query", q}, {"key", k}, {"value", v}};
  CHECK(flops("perigee::attention", args, {2, 4, 16, 10}) == 2. * 2 * 4 * 16 * 32 * 18);
  CHECK(flops("perigee::attention_backward", args, {2, 4, 16, 8}) == 2. * 2 * 4 * 16 * 32 * 44);
  auto causal = args;
  causal.emplace_back("causal", true);
  CHECK(flops("perigee::attention", causal, {2, 4, 16, 10}) == 2. * 2 * 4 * 16 * 32 * 9);
  CHECK(flops("aten::relu", {{"self", x}}, {1, 4, 8, 8}) == 256);
  CHECK(flops("aten::sum", {{"self", x}}, {}) == 256);
  CHECK(flops("aten::transpose.int", {{"self", x}}, {1, 8, 4, 8}) == 0);
}

TEST_CASE("ops are classified") {
  CHECK(is_view("aten::transpose.int"));
  CHECK(!is_view("perigee::reshape"));
  CHECK(is_collective("comm::all_reduce"));
  CHECK(is_random("perigee::dropout"));
  CHECK(is_pointwise("aten::add.Tensor"));
  CHECK(is_pointwise("aten::leaky_relu_backward"));
  CHECK(is_pointwise("perigee::cast"));
  CHECK(!is_pointwise("aten::equal"));
  CHECK(!is_pointwise("aten::sum"));
  for (int i = 0; i < 14; ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(dtype_of(name_of(dtype)) == dtype);
  }
  CHECK(!dtype_of("float"));
  CHECK(size_of(DType::bfloat16) == 2);
}
