// Norms that do the additions beside them, GELU's gradient with the sum of its rows, and casts to
// eight bits with the largest magnitudes.
#include "compile/graph/fuse/fuse_rows.h"

#include <catch2/catch.hpp>

using namespace perigee;
using graph::Arg;
using graph::DType;
using graph::Graph;
using graph::Output;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;
using Args = std::vector<std::pair<std::string, Arg>>;
using Ops = std::vector<std::string>;

namespace {

const TensorType kTokens{DType::float32, {2, 3, 8}}, kMatrix{DType::float32, {6, 8}};
const TensorType kOfColumns{DType::float32, {8}}, kStatistics{DType::float32, {2, 3, 1}};

struct Sketch {
  compile::Local local;
  Graph& graph = local.graph.graph;

  Sketch() { graph.scopes.push_back({"", "Net"}); }

  ValueId input(const TensorType& type = kTokens) {
    const auto name = "x" + std::to_string(graph.inputs.size());
    return graph.add_input(graph::Input::Kind::data, name, type);
  }
  std::vector<ValueId> several(std::string op, Args args, std::vector<TensorType> types,
                               Phase phase = Phase::forward) {
    return graph.add_node(std::move(op), std::move(args), std::move(types), "", phase);
  }
  ValueId op(std::string op, Args args, const TensorType& type = kTokens,
             Phase phase = Phase::forward) {
    return several(std::move(op), std::move(args), {type}, phase)[0];
  }
  ValueId add(ValueId a, ValueId b, const TensorType& type = kTokens) {
    return op("aten::add.Tensor", {{"self", a}, {"other", b}}, type);
  }
  std::vector<ValueId> layer_norm(ValueId x) {
    return several("aten::native_layer_norm",
                   {{"input", x},
                    {"normalized_shape", std::vector<int64_t>{8}},
                    {"weight", input(kOfColumns)},
                    {"bias", input(kOfColumns)},
                    {"eps", 1e-5}},
                   {graph.type(x), kStatistics, kStatistics});
  }
  void output(ValueId v) {
    const auto name = "result" + std::to_string(graph.outputs.size());
    graph.outputs.push_back({Output::Kind::result, name, v});
  }
  Ops fused(const std::vector<std::string>& scopes = {}) {
    compile::fuse_rows(local, scopes);
    graph::verify(graph::eliminate_dead_code(graph));
    Ops list;
    for (const auto& node : graph.nodes) list.push_back(node.op);
    return list;
  }
};

// The gradient of GELU, which a product reads by rows, and the sum of these rows.
struct Gelu : Sketch {
  ValueId gradient, rows, sum;

  explicit Gelu(std::vector<int64_t> over = {0}) {
    gradient = op(
        "aten::gelu_backward",
        {{"grad_output", input()}, {"self", input()}, {"approximate", std::string("tanh")}},
        kTokens, Phase::backward);
    rows = op("perigee::reshape", {{"self", gradient}}, kMatrix, Phase::backward);
    output(rows);
    sum = op(
        "aten::sum.dim_IntList", {{"self", rows}, {"dim", over}, {"keepdim", true}},
        over.front() == 0 ? TensorType{DType::float32, {1, 8}} : TensorType{DType::float32, {6, 1}},
        Phase::backward);
    output(sum);
  }
};

}  // namespace

TEST_CASE("a norm adds the terms of the sum that it reads, which others read after it") {
  Sketch s;
  const auto a = s.input(), b = s.input();
  const auto sum = s.add(a, b);
  const auto norm = s.layer_norm(sum);
  for (const auto v : norm) s.output(v);
  s.output(s.op("aten::neg", {{"self", sum}}));
  REQUIRE(s.fused() == Ops{"perigee::add_layer_norm", "aten::neg"});
  const auto& node = s.graph.nodes[0];
  CHECK(node.get<ValueId>("self", {}) == a);
  CHECK(node.get<ValueId>("other", {}) == b);
  CHECK(node.outputs == std::vector{sum, norm[0], norm[1], norm[2]});
}

TEST_CASE("an RMS norm adds a term of a low precision, in either order") {
  const bool low_first = GENERATE(false, true);
  Sketch s;
  const auto wide = s.input(), low = s.input({DType::bfloat16, kTokens.shape});
  const auto sum = low_first ? s.add(low, wide) : s.add(wide, low);
  s.output(
      s.several("perigee::rms_norm", {{"self", sum}, {"eps", 1e-5}}, {kTokens, kStatistics})[0]);
  REQUIRE(s.fused() == Ops{"perigee::add_rms_norm"});
  CHECK(s.graph.nodes[0].get<ValueId>("self", {}) == wide);
  CHECK(s.graph.nodes[0].get<ValueId>("other", {}) == low);
}

TEST_CASE("sums stay apart from norms that are far away, or that do not add whole terms") {
  const auto stays = [](auto make) {
    Sketch s;
    make(s);
    Ops before;
    for (const auto& node : s.graph.nodes) before.push_back(node.op);
    CHECK(s.fused() == before);
  };
  stays([](Sketch& s) {  // a reader before the norm
    const auto sum = s.add(s.input(), s.input());
    s.output(s.op("perigee::reshape", {{"self", sum}}, kMatrix));
    s.output(s.layer_norm(sum)[0]);
  });
  stays([](Sketch& s) {  // other work before the norm
    const auto sum = s.add(s.input(), s.input());
    s.output(s.op("aten::neg", {{"self", s.input()}}));
    s.output(s.layer_norm(sum)[0]);
  });
  stays([](Sketch& s) {  // a term that is broadcast
    s.output(s.layer_norm(s.add(s.input(), s.input({DType::float32, {3, 8}})))[0]);
  });
  stays([](Sketch& s) {  // a product of the sum
    const auto sum = s.op("aten::add.Tensor",
                          {{"self", s.input()}, {"other", s.input()}, {"alpha", 2.0}});
    s.output(s.layer_norm(sum)[0]);
  });
  stays([](Sketch& s) {  // another stage's section
    s.output(s.layer_norm(s.add(s.input(), s.input()))[0]);
    s.local.stage.emplace().section = {0, 1};
  });
}

TEST_CASE("a norm adds the terms of sums of its own block, unless the plan treats these apart") {
  const auto fused = [](const std::string& addition, const std::string& norm,
                        const std::vector<std::string>& apart = {}) {
    Sketch s;
    for (const auto* scope : {"norm", "blocks", "blocks.0", "blocks.0.mlp", "blocks.0.norm",
                              "blocks.1", "blocks.1.norm"}) {
      s.graph.scopes.push_back({scope, "Module"});
    }
    const auto sum = s.add(s.input(), s.input());
    s.output(s.layer_norm(sum)[0]);
    s.graph.nodes[0].scope = addition;
    s.graph.nodes[1].scope = norm;
    return s.fused(apart).front() == "perigee::add_layer_norm";
  };
  CHECK(fused("", "norm"));
  CHECK(fused("blocks.0", "blocks.0.norm"));
  CHECK(fused("blocks.0.mlp", "blocks.0.norm", {"blocks.0"}));
  CHECK_FALSE(fused("blocks.0.mlp", "blocks.0.norm", {"blocks.0.mlp"}));
  CHECK_FALSE(fused("blocks.0.mlp", "blocks.1.norm"));
  CHECK_FALSE(fused("blocks.0.mlp", "norm"));
}

TEST_CASE("the gradient of a norm adds another gradient, unless that is made later") {
  const auto late = GENERATE(false, true);
  Sketch s;
  const auto norm = s.layer_norm(s.input());
  const auto x = s.graph.nodes[0].get<ValueId>("input", {});
  s.output(norm[0]);
  const auto make_other = [&] { return s.op("aten::neg", {{"self", s.input()}}); };
  auto other = late ? ValueId{} : make_other();
  const auto back = s.several("aten::native_layer_norm_backward",
                              {{"grad_out", s.input()},
                               {"input", x},
                               {"normalized_shape", std::vector<int64_t>{8}},
                               {"mean", norm[1]},
                               {"rstd", norm[2]},
                               {"weight", s.input(kOfColumns)},
                               {"bias", s.input(kOfColumns)},
                               {"output_mask", std::vector<bool>{true, true, true}}},
                              {kTokens, kOfColumns, kOfColumns}, Phase::backward);
  if (late) other = make_other();
  const auto sum = s.add(other, back[0]);
  for (const auto v : {sum, back[1], back[2]}) s.output(v);
  const auto ops = s.fused();
  if (late) {
    REQUIRE(ops == Ops{"aten::native_layer_norm", "aten::native_layer_norm_backward", "aten::neg",
                       "aten::add.Tensor"});
    return;
  }
  REQUIRE(ops == Ops{"aten::native_layer_norm", "aten::neg", "perigee::layer_norm_backward_add"});
  CHECK(s.graph.nodes[2].get<ValueId>("other", {}) == other);
  CHECK(s.graph.nodes[2].outputs == std::vector{sum, back[1], back[2]});
}

namespace {

// A norm's gradient with an addition, cast to bfloat16 for a product and the gradient of a bias.
struct Rounded : Sketch {
  static constexpr const char* kNorm = "perigee::layer_norm_backward_add";
  const std::vector<int64_t> normalized;
  std::vector<ValueId> back;
  ValueId low, sum, bias;

  explicit Rounded(std::vector<int64_t> over = {8}) : normalized(std::move(over)) {
    const auto vector = TensorType{DType::float32, normalized};
    back = several("aten::native_layer_norm_backward",
                   {{"grad_out", input()},
                    {"input", input()},
                    {"normalized_shape", normalized},
                    {"mean", input(kStatistics)},
                    {"rstd", input(kStatistics)},
                    {"weight", input(vector)},
                    {"bias", input(vector)},
                    {"output_mask", std::vector<bool>{true, true, true}}},
                   {kTokens, vector, vector}, Phase::backward);
    sum = add(back[0], input());
    for (const auto v : {sum, back[1], back[2]}) output(v);
  }
  void round(DType dtype = DType::bfloat16) {
    low = op("perigee::cast", {{"self", sum}}, {dtype, kTokens.shape}, Phase::backward);
    const auto rows = op("perigee::reshape", {{"self", low}}, {dtype, kMatrix.shape},
                         Phase::backward);
    bias = op("aten::sum.dim_IntList", {{"self", rows}, {"dim", std::vector<int64_t>{0}}},
              {dtype, kOfColumns.shape}, Phase::backward);
    for (const auto v : {rows, bias}) output(v);
  }
};

}  // namespace

TEST_CASE("the gradient of a norm rounds itself, and sums its rounded rows") {
  Rounded s;
  s.round();
  REQUIRE(s.fused() == Ops{Rounded::kNorm, "perigee::reshape", "perigee::reshape"});
  const auto& node = s.graph.nodes[0];
  REQUIRE(node.outputs.size() == 5);
  CHECK(node.outputs[0] == s.sum);
  CHECK(node.outputs[3] == s.low);
  CHECK((s.graph.type(node.outputs[4]) == TensorType{DType::bfloat16, {8}}));
  CHECK(s.graph.nodes[2].get<ValueId>("self", {}) == node.outputs[4]);
  CHECK(s.graph.nodes[2].outputs[0] == s.bias);
}

TEST_CASE("the gradient of a norm over two dims rounds itself without a sum") {
  Rounded s({3, 8});
  s.round();
  CHECK((s.fused() == Ops{Rounded::kNorm, "perigee::reshape", "aten::sum.dim_IntList"}));
  CHECK(s.graph.nodes[0].outputs.size() == 4);
}

TEST_CASE("casts of a norm's gradient to float64, after other work, or of another part stay") {
  const Ops before = {Rounded::kNorm, "perigee::cast", "perigee::reshape", "aten::sum.dim_IntList"};
  Rounded wide;
  wide.round(DType::float64);
  CHECK(wide.fused() == before);
  Rounded late;
  late.output(late.op("aten::neg", {{"self", late.input()}}, kTokens, Phase::backward));
  late.round();
  CHECK(late.fused().size() == 5);
  Rounded stage;
  stage.round();
  stage.local.stage.emplace().section = {0, 0, 1, 1, 1};
  CHECK(stage.fused() == before);
  Rounded apart;  // the plan treats the values of one of both scopes apart
  apart.graph.scopes.push_back({"block", "Block"});
  apart.round();
  apart.graph.nodes[2].scope = "block";
  CHECK(apart.fused({"block"}) == before);
}

TEST_CASE("GELU's gradient makes the sum of its rows") {
  Gelu g;
  REQUIRE(g.fused() == Ops{"perigee::gelu_backward_sum", "perigee::reshape", "perigee::reshape"});
  const auto& back = g.graph.nodes[0];
  CHECK(back.get<std::string>("approximate", "") == "tanh");
  REQUIRE(back.outputs.size() == 2);
  CHECK(back.outputs[0] == g.gradient);
  CHECK(g.graph.type(back.outputs[1]) == kOfColumns);
  CHECK(g.graph.nodes[2].get<ValueId>("self", {}) == back.outputs[1]);
  CHECK(g.graph.nodes[2].outputs[0] == g.sum);
}

TEST_CASE("sums over columns, in another section of a stage or of a broadcast gradient stay") {
  const Ops before = {"aten::gelu_backward", "perigee::reshape", "aten::sum.dim_IntList"};
  CHECK(Gelu({1}).fused() == before);
  Gelu g;
  g.local.stage.emplace().section = {1, 1, 2};
  CHECK(g.fused() == before);
  Gelu broadcast;  // a gradient that is the same for all rows
  for (auto& [name, arg] : broadcast.graph.nodes[0].args) {
    if (name == "grad_output") arg = broadcast.input(kOfColumns);
  }
  CHECK(broadcast.fused() == before);
}

namespace {

// A cast to eight bits, and the largest magnitude of the same matrix.
struct Cast : Sketch {
  const ValueId matrix = input(kMatrix);

  ValueId magnitude() { return op("perigee::fp8_amax", {{"self", matrix}}, {DType::float32, {}}); }
  void cast(ValueId scale) {
    output(op("perigee::fp8_cast",
              {{"self", matrix}, {"scale", scale}, {"format", std::string("e4m3")}},
              {DType::float8_e4m3, kMatrix.shape}));
  }
};

}  // namespace

TEST_CASE("a cast to eight bits makes the magnitude that is taken after it") {
  Cast s;
  s.cast(s.input({DType::float32, {}}));
  const auto magnitude = s.magnitude();
  s.output(magnitude);
  CHECK((s.fused() == Ops{"perigee::fp8_cast_amax"}));
  CHECK((s.graph.nodes[0].outputs[1] == magnitude));
}

TEST_CASE("a magnitude of which the scale of a cast is made stays before the cast") {
  Cast s;
  const auto scale = s.op("perigee::fp8_scale",
                          {{"amax", s.magnitude()},
                           {"format", std::string("e4m3")},
                           {"margin", int64_t{0}},
                           {"most_recent", true}},
                          {DType::float32, {}});
  s.cast(scale);
  CHECK((s.fused() == Ops{"perigee::fp8_amax", "perigee::fp8_scale", "perigee::fp8_cast"}));
}

namespace {

// A cast of rows to eight bits.
struct CastOfRows : Cast {
  const TensorType numbers{DType::float32, {6, 1}};

  ValueId magnitudes(int64_t dim = 1) {
    return op("perigee::fp8_amax_rows", {{"self", matrix}, {"dim", dim}}, numbers);
  }
  void cast(ValueId of, ValueId amax) {
    const auto made = several(
        "perigee::fp8_cast_rows",
        {{"self", of}, {"amax", amax}, {"format", std::string("e4m3")}, {"margin", int64_t{0}}},
        {{DType::float8_e4m3, kMatrix.shape}, numbers});
    for (const auto v : made) output(v);
  }
};

const Ops kApart = {"perigee::fp8_amax_rows", "perigee::fp8_cast_rows"};

}  // namespace

TEST_CASE("a cast of rows finds the magnitudes that scale them") {
  CastOfRows s;
  s.cast(s.matrix, s.magnitudes());
  CHECK((s.fused() == Ops{"perigee::fp8_cast_rows"}));
  CHECK(s.graph.nodes[0].find("amax") == nullptr);
  CHECK(s.graph.nodes[0].get<ValueId>("self", {}) == s.matrix);
}

TEST_CASE("magnitudes of rows that others read, or of another matrix, stay before the cast") {
  CastOfRows read;
  const auto amax = read.magnitudes();
  read.cast(read.matrix, amax);
  read.output(amax);
  CHECK((read.fused() == kApart));
  CastOfRows twice;
  const auto shared = twice.magnitudes();
  twice.cast(twice.matrix, shared);
  twice.cast(twice.matrix, shared);
  CHECK(twice.fused().size() == 3);
  CastOfRows other;
  other.cast(other.input(kMatrix), other.magnitudes());
  CHECK((other.fused() == kApart));
  CHECK(other.graph.nodes[1].find("amax") != nullptr);
  CastOfRows global;  // those of all ranks
  global.cast(global.matrix, global.op("comm::all_reduce",
                                       {{"self", global.magnitudes()},
                                        {"axis", std::string("tensor")},
                                        {"op", std::string("max")}},
                                       global.numbers));
  CHECK(global.fused().size() == 3);
}
