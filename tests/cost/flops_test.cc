#include "cost/flops.h"

#include <catch2/catch.hpp>

using namespace perigee;
using graph::DType;
using graph::Graph;
using graph::Input;

namespace {

cost::OpWork work(const Graph& g) { return cost::work_of(g, g.nodes.back()); }

}  // namespace

TEST_CASE(
    "a matrix product has two operations for each multiplication and moves each matrix once") {
  Graph g;
  const auto a = g.add_input(Input::Kind::data, "a", {DType::bfloat16, {8, 16}});
  const auto b = g.add_input(Input::Kind::parameter, "b", {DType::bfloat16, {16, 4}});
  g.add_node("aten::mm", {{"self", a}, {"mat2", b}}, {{DType::bfloat16, {8, 4}}});
  CHECK(work(g) == cost::OpWork{2.0 * 8 * 16 * 4, 2.0 * (128 + 64 + 32), true, DType::bfloat16});
}

TEST_CASE("products of experts are matrix products") {
  Graph g;
  const auto queue = g.add_input(Input::Kind::data, "queue", {DType::bfloat16, {2, 3, 5, 8}});
  const auto weights = g.add_input(Input::Kind::parameter, "weights", {DType::bfloat16, {2, 8, 4}});
  const auto counts = g.add_input(Input::Kind::data, "counts", {DType::int64, {3, 2}});
  const auto out = g.add_node("perigee::grouped_mm",
                              {{"self", queue}, {"mat2", weights}, {"counts", counts}},
                              {{DType::bfloat16, {2, 3, 5, 4}}});
  CHECK(work(g).matrix);
  CHECK(work(g).flops == 2.0 * 2 * 3 * 5 * 8 * 4);
  g.add_node("perigee::grouped_outer", {{"self", queue}, {"grad", out[0]}, {"counts", counts}},
             {{DType::bfloat16, {2, 8, 4}}});
  CHECK(work(g).matrix);
  CHECK(work(g).flops == 2.0 * 2 * 3 * 5 * 8 * 4);
}

TEST_CASE("an embedding's gradient that is added in place moves the rows that it adds") {
  Graph g;
  const auto sum = g.add_input(Input::Kind::data, "sum", {DType::float32, {1000, 8}});
  const auto grad = g.add_input(Input::Kind::data, "grad", {DType::float32, {10, 8}});
  const auto ids = g.add_input(Input::Kind::data, "ids", {DType::int64, {10}});
  g.add_node("perigee::embedding_backward_",
             {{"sum", sum}, {"grad_output", grad}, {"indices", ids}},
             {{DType::float32, {1000, 8}}});
  // Rows of the sum are read and written.
  CHECK(cost::work_of(g, g.nodes[0]).bytes == 3 * 320 + 80);
}

TEST_CASE("an embedding reads the rows it looks up and not the whole table") {
  Graph g;
  const auto table = g.add_input(Input::Kind::parameter, "table", {DType::float32, {50000, 8}});
  const auto ids = g.add_input(Input::Kind::data, "ids", {DType::int64, {10}});
  g.add_node("aten::embedding", {{"weight", table}, {"indices", ids}}, {{DType::float32, {10, 8}}});
  CHECK(work(g).bytes == 4 * 80 + 8 * 10 + 4 * 80);
  CHECK(work(g).flops == 0);
  CHECK(work(g).dtype == DType::float32);
}

TEST_CASE("views have no work, and the optimizer reads and writes weights and states") {
  Graph g;
  const auto w = g.add_input(Input::Kind::parameter, "w", {DType::float32, {4, 8}});
  g.add_node("aten::t", {{"self", w}}, {{DType::float32, {8, 4}}});
  CHECK(work(g).bytes == 0);
  CHECK(work(g).flops == 0);
  const auto m = g.add_input(Input::Kind::data, "m", {DType::float32, {4, 8}});
  const auto v = g.add_input(Input::Kind::data, "v", {DType::float32, {4, 8}});
  const auto d = g.add_input(Input::Kind::data, "d", {DType::float32, {4, 8}});
  g.add_node("perigee::adamw_", {{"self", w}, {"exp_avg", m}, {"exp_avg_sq", v}, {"gradient", d}},
             {});
  CHECK(work(g).bytes == 4 * 32 * 7);
  g.add_node("perigee::copy_", {{"self", m}, {"source", d}}, {});
  CHECK(work(g).bytes == 4 * 32 * 2);
}
