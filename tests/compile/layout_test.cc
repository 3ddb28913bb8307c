#include "compile/draft/layout.h"

#include <catch2/catch.hpp>

using namespace perigee;
using namespace perigee::compile;
using Sizes = std::vector<int64_t>;

TEST_CASE("a reshape is a view if the merged dims are contiguous") {
  CHECK(reshape_strides({2, 3, 4}, {12, 4, 1}, {6, 4}) == Sizes{4, 1});
  CHECK(reshape_strides({2, 3, 4}, {12, 4, 1}, {2, 3, 2, 2}) == Sizes{12, 4, 2, 1});
  CHECK(reshape_strides({4, 3}, {1, 4}, {12}) == std::nullopt);
  CHECK(reshape_strides({4, 3}, {1, 4}, {2, 2, 3}) == Sizes{2, 1, 4});
  CHECK(reshape_strides({2, 8, 3, 4}, {96, 4, 32, 1}, {2, 8, 12}) == std::nullopt);
  CHECK(reshape_strides({1, 3}, {100, 1}, {3}) == Sizes{1});
  CHECK(reshape_strides({}, {}, {1, 1}) == Sizes{1, 1});
  CHECK(reshape_strides({0, 3}, {3, 1}, {3, 0}) == Sizes{1, 1});
  CHECK(reshape_strides({3, 1, 5}, {0, 7, 1}, {3, 5}) == Sizes{0, 1});
}

TEST_CASE("views have LibTorch's strides and offsets") {
  graph::Node node;
  const graph::TensorType self{graph::DType::float32, {4, 6}};
  auto view = [&](std::string op, std::vector<std::pair<std::string, graph::Arg>> args, Sizes shape,
                  int32_t result = 0) {
    node.op = std::move(op);
    node.args = std::move(args);
    const auto v = view_of_operand(node, result, self, {6, 1}, {self.dtype, std::move(shape)});
    return std::pair(v.strides, v.offset);
  };
  auto dim = [](int64_t d) { return std::pair<std::string, graph::Arg>("dim", d); };
  auto number = [](const char* name, int64_t n) {
    return std::pair<std::string, graph::Arg>(name, n);
  };
  using P = std::pair<Sizes, int64_t>;
  CHECK(view("aten::t", {}, {6, 4}) == P{{1, 6}, 0});
  CHECK(view("aten::transpose.int", {number("dim0", -1), number("dim1", 0)}, {6, 4}) ==
        P{{1, 6}, 0});
  CHECK(view("aten::select.int", {dim(1), number("index", -1)}, {4}) == P{{6}, 5});
  CHECK(view("aten::slice.Tensor", {dim(1), number("start", -4), number("step", 2)}, {4, 2}) ==
        P{{6, 2}, 2});
  CHECK(view("aten::slice.Tensor", {dim(0), number("start", 1), number("end", INT64_MAX)},
             {3, 6}) == P{{6, 1}, 6});
  CHECK(view("aten::unsqueeze", {dim(-1)}, {4, 6, 1}) == P{{6, 1, 1}, 0});
  CHECK(view("aten::unsqueeze", {dim(0)}, {1, 4, 6}) == P{{24, 6, 1}, 0});
  CHECK(view("perigee::expand", {}, {3, 4, 6}) == P{{0, 6, 1}, 0});
  CHECK(view("aten::split.Tensor", {number("split_size", 4), dim(1)}, {4, 2}, 1) == P{{6, 1}, 4});
  CHECK(view("aten::diagonal", {number("offset", 1)}, {4}) == P{{7}, 1});
  CHECK(view("aten::unfold", {number("dimension", 1), number("size", 3), number("step", 2)},
             {4, 2, 3}) == P{{6, 2, 1}, 0});
  CHECK_THROWS_WITH(view("aten::as_strided", {}, {4}),
                    Catch::Contains("layout rule") && Catch::Contains("aten::as_strided"));
}

TEST_CASE("pointwise results keep the order of their operands' dims") {
  const Sizes shape{2, 3, 4}, row{12, 4, 1}, last{4}, one{1}, turned{12, 1, 3}, none;
  CHECK(pointwise_strides(shape, {{&shape, &row}, {&shape, &row}}) == row);
  CHECK(pointwise_strides(shape, {{&shape, &turned}, {&shape, &turned}}) == turned);
  CHECK(pointwise_strides(shape, {{&shape, &turned}, {&last, &one}}) == turned);
  CHECK(pointwise_strides(shape, {{&shape, &row}, {&shape, &turned}}) == row);
  CHECK(pointwise_strides(shape, {{&shape, &turned}, {&none, &none}}) == turned);
  // The result of a slice of every other column has no gaps.
  const Sizes gaps{24, 8, 2};
  CHECK(pointwise_strides(shape, {{&shape, &gaps}}) == row);
}

TEST_CASE("dense and contiguous layouts are distinguished") {
  CHECK(is_contiguous({2, 1, 3}, {3, 77, 1}));
  CHECK_FALSE(is_contiguous({2, 3}, {1, 2}));
  CHECK(is_dense({2, 3}, {1, 2}));
  CHECK_FALSE(is_dense({2, 3}, {6, 2}));
  CHECK_FALSE(is_dense({2, 3}, {0, 1}));
  CHECK(extent({2, 3}, {6, 2}) == 11);
  CHECK(extent({0, 3}, {6, 2}) == 0);
  CHECK(extent({}, {}) == 1);
}
