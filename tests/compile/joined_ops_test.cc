// Passes that join ops of a rank's graph.
#include <catch2/catch.hpp>

#include "compile/graph/fuse/fold_casts.h"
#include "compile/graph/fuse/fuse_bias.h"
#include "compile/graph/fuse/join_parts.h"
#include "compile/graph/prepare.h"

using namespace perigee;
using graph::Arg;
using graph::DType;
using graph::Graph;
using graph::Output;
using graph::Phase;
using graph::TensorType;
using graph::ValueId;
using Args = std::vector<std::pair<std::string, Arg>>;

namespace {

const TensorType kPart{DType::float32, {2, 4}}, kWhole{DType::float32, {3, 2, 4}};

// Gradients of parts, each padded with zeros, whose sums are results.
struct Padded {
  Graph graph;
  std::vector<ValueId> parts;

  Padded() { graph.scopes.push_back({"", "Net"}); }

  ValueId add(std::string op, Args args, const TensorType& type) {
    return graph.add_node(std::move(op), std::move(args), {type}, "", Phase::backward)[0];
  }
  ValueId part(const TensorType& type) {
    parts.push_back(
        graph.add_input(graph::Input::Kind::data, "g" + std::to_string(parts.size()), type));
    return parts.back();
  }
  ValueId selected(int64_t index, int64_t dim = 0) {
    return add("aten::select_backward",
               {{"grad_output", part(kPart)},
                {"input_sizes", kWhole.shape},
                {"dim", dim},
                {"index", index}},
               kWhole);
  }
  ValueId sliced(int64_t start, int64_t end, int64_t step = 1) {
    return add("aten::slice_backward",
               {{"grad_output", part({DType::float32, {(end - start + step - 1) / step, 2, 4}})},
                {"input_sizes", kWhole.shape},
                {"dim", int64_t{0}},
                {"start", start},
                {"end", end},
                {"step", step}},
               kWhole);
  }
  void sum(ValueId a, ValueId b, ValueId c) {
    const auto first = add("aten::add.Tensor", {{"self", a}, {"other", b}}, kWhole);
    output(add("aten::add.Tensor", {{"self", first}, {"other", c}}, kWhole));
  }
  void output(ValueId v) {
    const auto name = "result" + std::to_string(graph.outputs.size());
    graph.outputs.push_back({Output::Kind::result, name, v});
  }
};

std::vector<std::string> ops(const Graph& graph) {
  std::vector<std::string> list;
  for (const auto& node : graph.nodes) list.push_back(node.op);
  return list;
}

using Ops = std::vector<std::string>;

// Returns the names of the parts that the graph's only node joins, in their order.
Ops joined_parts(const Graph& graph) {
  Ops names;
  for (const auto v : graph.nodes.at(0).get<std::vector<ValueId>>("tensors", {})) {
    names.push_back(graph.inputs.at(v.index).name);
  }
  return names;
}

}  // namespace

TEST_CASE("gradients of all parts of a tensor are stacked in the order of the parts") {
  Padded padded;
  const auto c = padded.selected(2), a = padded.selected(0), b = padded.selected(-2);
  padded.sum(c, a, b);
  const auto joined = compile::join_parts(padded.graph);
  graph::verify(joined);
  REQUIRE(ops(joined) == Ops{"aten::stack"});
  CHECK(joined.nodes[0].get<int64_t>("dim", -1) == 0);
  CHECK(joined_parts(joined) == Ops{"g1", "g2", "g0"});
  CHECK(joined.type(joined.outputs[0].value) == kWhole);
}

TEST_CASE("a permuted stack is a stack of permuted parts") {
  Padded padded;
  const TensorType permuted{DType::float32, {4, 3, 2}};
  const auto a = padded.selected(0), b = padded.selected(1), c = padded.selected(2);
  const auto first = padded.add("aten::add.Tensor", {{"self", a}, {"other", b}}, kWhole);
  const auto sum = padded.add("aten::add.Tensor", {{"self", first}, {"other", c}}, kWhole);
  padded.output(padded.add("aten::permute",
                           {{"self", sum}, {"dims", std::vector<int64_t>{2, 0, -2}}}, permuted));
  const auto joined = compile::join_parts(padded.graph);
  graph::verify(joined);
  REQUIRE(ops(joined) == Ops{"aten::permute", "aten::permute", "aten::permute", "aten::stack"});
  const auto& part = joined.nodes[0];
  CHECK((part.get<std::vector<int64_t>>("dims", {}) == std::vector<int64_t>{1, 0}));
  CHECK((joined.type(part.outputs[0]).shape == std::vector<int64_t>{4, 2}));
  CHECK(joined.nodes[3].get<int64_t>("dim", -1) == 1);
  CHECK(joined.type(joined.outputs[0].value) == permuted);
  // A second reader of the sum keeps it as it is.
  padded.output(padded.add("aten::neg", {{"self", sum}}, kWhole));
  CHECK(ops(compile::join_parts(padded.graph)) == Ops{"aten::stack", "aten::permute", "aten::neg"});
}

TEST_CASE("gradients of slices that fill a dim are concatenated") {
  Padded padded;
  const auto a = padded.sliced(0, 1), b = padded.sliced(2, 9), c = padded.sliced(1, 2);
  padded.sum(a, b, c);
  const auto joined = compile::join_parts(padded.graph);
  REQUIRE(ops(joined) == Ops{"aten::cat"});
  CHECK(joined_parts(joined) == Ops{"g0", "g2", "g1"});
}

TEST_CASE("sums stay where a part is missing, given twice, strided or read by others") {
  const auto stays = [](auto make) {
    Padded padded;
    make(padded);
    const auto before = ops(padded.graph);
    CHECK(ops(compile::join_parts(padded.graph)) == before);
  };
  stays([](Padded& p) {
    const auto a = p.selected(0), b = p.selected(1);
    p.output(p.add("aten::add.Tensor", {{"self", a}, {"other", b}}, kWhole));
  });
  stays([](Padded& p) {
    const auto a = p.selected(0), b = p.selected(1), c = p.selected(1);
    p.sum(a, b, c);
  });
  stays([](Padded& p) {
    const auto a = p.sliced(0, 3, 2), b = p.sliced(1, 2), c = p.sliced(2, 3);
    p.sum(a, b, c);
  });
  stays([](Padded& p) {
    const auto a = p.selected(0), b = p.selected(1), c = p.selected(2);
    p.sum(a, b, c);
    p.graph.outputs.push_back({Output::Kind::result, "part", b});
  });
  stays([](Padded& p) {
    const auto a = p.selected(0), b = p.sliced(1, 2), c = p.selected(2);
    p.sum(a, b, c);
  });
}

TEST_CASE("a product adds its bias, also where a view lies between both") {
  for (const bool viewed : {false, true}) {
    Padded net;
    const TensorType x{DType::float32, {6, 5}}, w{DType::float32, {5, 4}},
        y{DType::float32, {6, 4}}, z{DType::float32, {2, 3, 4}}, b{DType::float32, {4}};
    const auto forward = [&](std::string op, Args args, const TensorType& type) {
      return net.graph.add_node(std::move(op), std::move(args), {type}, "", Phase::forward)[0];
    };
    const auto in = net.part(x), weight = net.part(w), bias = net.part(b);
    auto product = forward("aten::mm", {{"self", in}, {"mat2", weight}}, y);
    if (viewed) product = forward("perigee::reshape", {{"self", product}}, z);
    const auto sum = forward("aten::add.Tensor", {{"self", product}, {"other", bias}},
                             viewed ? z : y);
    net.output(net.add("aten::neg", {{"self", sum}}, viewed ? z : y));
    net.graph.nodes.back().forward_node = 0;
    const auto fused = compile::fuse_bias(net.graph);
    graph::verify(fused);
    CHECK(ops(fused) == (viewed ? Ops{"aten::addmm", "perigee::reshape", "aten::neg"}
                                : Ops{"aten::addmm", "aten::neg"}));
    // The derivative of the product names the node that stands for it.
    CHECK(fused.nodes.back().forward_node == 0);
    // A bias of a later part of a pipeline is added there.
    std::vector<int> parts(net.graph.nodes.size(), 1);
    CHECK(ops(compile::fuse_bias(net.graph, parts)) == ops(fused));
    parts[0] = 0;
    CHECK(ops(compile::fuse_bias(net.graph, parts)) == ops(net.graph));
    // Another reader of the product keeps it.
    net.graph.outputs.push_back({Output::Kind::result, "y", product});
    CHECK(ops(compile::fuse_bias(net.graph)) == ops(net.graph));
  }
}

TEST_CASE("a product of eight-bit factors adds its bias where its result has 16 bits") {
  for (const auto dtype : {DType::bfloat16, DType::float16, DType::float32}) {
    Padded net;
    const TensorType x{DType::float8_e4m3, {16, 32}}, w{DType::float8_e4m3, {32, 48}},
        scale{DType::float32, {}}, y{dtype, {16, 48}}, b{dtype, {48}};
    const auto product = net.add("aten::_scaled_mm",
                                 {{"self", net.part(x)},
                                  {"mat2", net.part(w)},
                                  {"scale_a", net.part(scale)},
                                  {"scale_b", net.part(scale)},
                                  {"out_dtype", dtype}},
                                 y);
    const auto bias = net.part(b);
    net.output(net.add("aten::add.Tensor", {{"self", product}, {"other", bias}}, y));
    const auto fused = compile::fuse_bias(net.graph);
    graph::verify(fused);
    if (dtype == DType::float32) {
      CHECK(ops(fused) == ops(net.graph));
      continue;
    }
    CHECK(ops(fused) == Ops{"aten::_scaled_mm"});
    CHECK((fused.type(fused.nodes[0].get<ValueId>("bias", {})) == b));
    CHECK(fused.nodes[0].args.size() == 6);
  }
}

TEST_CASE("vectors that are no bias of a product are added as they were") {
  const auto stays = [](const TensorType& product, const TensorType& sum, const TensorType& bias) {
    Padded net;
    const auto rows = product.shape[0], columns = product.shape[1];
    const auto in = net.part({DType::float32, {rows, 5}});
    const auto weight = net.part({DType::float32, {5, columns}}), b = net.part(bias);
    const auto forward = Phase::forward;
    auto v = net.graph.add_node("aten::mm", {{"self", in}, {"mat2", weight}}, {product}, "",
                                forward)[0];
    if (sum.shape != product.shape) {
      v = net.graph.add_node("perigee::reshape", {{"self", v}}, {sum}, "", forward)[0];
    }
    net.output(
        net.graph.add_node("aten::add.Tensor", {{"self", v}, {"other", b}}, {sum}, "", forward)[0]);
    CHECK(ops(compile::fuse_bias(net.graph)) == ops(net.graph));
  };
  const auto f = DType::float32;
  stays({f, {6, 4}}, {f, {12, 2}}, {f, {2}});  // rows of the sum are not those of the product
  stays({f, {6, 4}}, {f, {6, 4}}, {f, {1}});
  stays({f, {6, 4}}, {f, {6, 4}}, {f, {6, 4}});
  stays({f, {6, 4}}, {f, {6, 4}}, {DType::float64, {4}});
}

TEST_CASE("an addition in float32 reads a summand of a low precision without a cast of its own") {
  const TensorType low{DType::bfloat16, {2, 4}}, scalar{DType::bfloat16, {}},
      wide_scalar{DType::float32, {}};
  const auto left = [&](const TensorType& a, const TensorType& b, bool shared) {
    Padded net;
    const auto widened = [&](const TensorType& type) {
      const auto v = net.part(type);
      if (type.dtype == DType::float32) return v;
      return net.add("perigee::cast", {{"self", v}}, {DType::float32, type.shape});
    };
    const auto x = widened(a), y = widened(b);
    net.output(net.add("aten::add.Tensor", {{"self", x}, {"other", y}}, kPart));
    if (shared) net.output(y);
    const auto folded = compile::fold_casts(net.graph);
    graph::verify(folded);
    return ops(folded).size();
  };
  CHECK(left(kPart, low, false) == 1);
  {
    Padded net;  // without summands
    const auto y = net.add("perigee::cast", {{"self", net.part(low)}}, kPart);
    net.output(net.add("aten::add.Tensor", {{"self", net.part(kPart)}, {"other", y}}, kPart));
    CHECK(ops(compile::fold_casts(net.graph, compile::FoldedSummands::none)).size() == 2);
  }
  CHECK(left(low, kPart, false) == 1);
  CHECK(left(low, low, false) == 2);  // the sum of two would not be float32
  CHECK(left(kPart, low, true) == 2);
  CHECK(left(kPart, scalar, false) == 2);
  CHECK(left(low, wide_scalar, false) == 2);
}

namespace {

const TensorType kLow{DType::bfloat16, {2, 4}}, kFlatLow{DType::bfloat16, {8}},
    kRow{DType::float32, {2, 1}}, kFlat{DType::float32, {8}};

ValueId norm_of(Padded& net, ValueId x) {
  return net.graph.add_node("perigee::rms_norm", {{"self", x}, {"eps", 1e-5}}, {kPart, kRow}, "",
                            Phase::forward)[0];
}

}  // namespace

TEST_CASE("a norm makes its result in the low precision to which all readers cast it") {
  Padded net;
  const auto y = norm_of(net, net.part(kPart));
  const auto flat = net.add("perigee::reshape", {{"self", y}}, kFlat);
  net.output(net.add("aten::neg", {{"self", net.add("perigee::cast", {{"self", y}}, kLow)}}, kLow));
  net.output(net.add("aten::neg", {{"self", net.add("perigee::cast", {{"self", flat}}, kFlatLow)}},
                     kFlatLow));
  const auto folded = compile::fold_casts(net.graph);
  graph::verify(folded);
  CHECK((ops(folded) == Ops{"perigee::rms_norm", "perigee::reshape", "aten::neg", "aten::neg"}));
  CHECK((folded.type(folded.nodes[0].outputs[0]) == kLow));
  CHECK((folded.type(folded.nodes[1].outputs[0]) == kFlatLow));
}

TEST_CASE("a norm that others read in float32, or in another low precision, stays as it is") {
  const auto stays = [](auto read) {
    Padded net;
    const auto y = norm_of(net, net.part(kPart));
    net.output(
        net.add("aten::neg", {{"self", net.add("perigee::cast", {{"self", y}}, kLow)}}, kLow));
    read(net, y);
    const auto folded = compile::fold_casts(net.graph);
    CHECK((folded.type(folded.nodes[0].outputs[0]) == kPart));
    CHECK(ops(folded).size() == net.graph.nodes.size());
  };
  stays([](Padded& net, ValueId y) { net.output(net.add("aten::neg", {{"self", y}}, kPart)); });
  stays([](Padded& net, ValueId y) { net.output(y); });
  stays([](Padded& net, ValueId y) {  // a first result that nothing needs
    const auto made = net.graph.add_node("perigee::rms_norm_backward",
                                         {{"grad", y}, {"self", y}, {"rstd", net.part(kRow)}},
                                         {kPart, kPart}, "", Phase::backward);
    net.graph.nodes.back().outputs[0] = {};
    net.graph.values[made[0].index].producer = -1;
    net.output(made[1]);
  });
  stays([](Padded& net, ValueId y) {
    const auto flat = net.add("perigee::reshape", {{"self", y}}, kFlat);
    net.output(net.add("aten::neg", {{"self", flat}}, kFlat));
  });
  stays([](Padded& net, ValueId y) {
    const TensorType half{DType::float16, {2, 4}};
    net.output(
        net.add("aten::neg", {{"self", net.add("perigee::cast", {{"self", y}}, half)}}, half));
  });
}

TEST_CASE("the gradient of a norm reads a gradient of a low precision without a cast of its own") {
  const auto left = [](bool shared) {
    Padded net;
    const auto wide = net.add("perigee::cast", {{"self", net.part(kFlatLow)}}, kFlat);
    const auto g = net.add("perigee::reshape", {{"self", wide}}, kPart);
    net.output(net.add("perigee::rms_norm_backward",
                       {{"grad", g}, {"self", net.part(kPart)}, {"rstd", net.part(kRow)}}, kPart));
    if (shared) net.output(wide);
    const auto folded = compile::fold_casts(net.graph);
    graph::verify(folded);
    const auto read = folded.nodes.back().get<ValueId>("grad", {});
    CHECK((folded.type(read) == (shared ? kPart : kLow)));
    return ops(folded);
  };
  CHECK((left(false) == Ops{"perigee::reshape", "perigee::rms_norm_backward"}));
  CHECK(left(true).size() == 3);
}

TEST_CASE("gradients of norms that are parts of one cast read float32") {
  Padded net;
  const TensorType whole{DType::float32, {2, 2, 4}};
  const auto wide = net.add("perigee::cast", {{"self", net.part({DType::bfloat16, {2, 2, 4}})}},
                            whole);
  const auto parts = net.graph.add_node("aten::unbind.int", {{"self", wide}, {"dim", int64_t{0}}},
                                        {kPart, kPart}, "", Phase::backward);
  for (const auto part : parts) {
    net.output(net.add("perigee::rms_norm_backward",
                       {{"grad", part}, {"self", net.part(kPart)}, {"rstd", net.part(kRow)}},
                       kPart));
  }
  const auto folded = compile::fold_casts(net.graph);
  graph::verify(folded);
  CHECK(ops(folded) == ops(net.graph));
  for (const auto part : folded.nodes[1].outputs) CHECK((folded.type(part) == kPart));
}

TEST_CASE("rotary positions in float32 read and make a low precision where only casts read them") {
  const bool backward = GENERATE(false, true);
  const std::string op = backward ? "perigee::rotary_backward" : "perigee::rotary";
  const auto left = [&](DType to, bool shared) {
    Padded net;
    const auto wide = net.add("perigee::cast", {{"self", net.part(kFlatLow)}}, kFlat);
    const auto x = net.add("perigee::reshape", {{"self", wide}}, kPart);
    const auto y = net.add(
        op, {{backward ? "grad" : "self", x}, {"cos", net.part(kPart)}, {"sin", net.part(kPart)}},
        kPart);
    const TensorType made{to, kPart.shape};
    net.output(
        net.add("aten::neg", {{"self", net.add("perigee::cast", {{"self", y}}, made)}}, made));
    if (shared) net.output(y);
    const auto folded = compile::fold_casts(net.graph);
    graph::verify(folded);
    return ops(folded);
  };
  const Ops stays = {"perigee::cast", "perigee::reshape", op, "perigee::cast", "aten::neg"};
  CHECK((left(DType::bfloat16, false) == Ops{"perigee::reshape", op, "aten::neg"}));
  CHECK(left(DType::bfloat16, true) == stays);
  CHECK(left(DType::float16, false) == stays);  // from another low precision than to
}

TEST_CASE("a gradient that is reshaped twice is copied once") {
  Padded net;
  const TensorType flat{DType::float32, {24}}, two{DType::float32, {6, 4}};
  const auto x = net.add("aten::neg", {{"self", net.part(kWhole)}}, kWhole);
  const auto first = net.add("perigee::reshape", {{"self", x}}, two);
  const auto second = net.add("perigee::reshape", {{"self", x}}, flat);
  net.output(net.add("aten::neg", {{"self", first}}, two));
  net.output(net.add("aten::neg", {{"self", second}}, flat));
  const auto simple = compile::simplify_views(net.graph);
  graph::verify(simple);
  REQUIRE(ops(simple) ==
          Ops{"aten::neg", "perigee::reshape", "perigee::reshape", "aten::neg", "aten::neg"});
  CHECK((simple.nodes[2].get<ValueId>("self", {}) == simple.nodes[1].outputs[0]));
}

TEST_CASE("a reshape of a reshape reads the first one's operand only where nothing else reads it") {
  for (const bool shared : {false, true}) {
    Padded padded;
    const TensorType flat{DType::float32, {24}}, two{DType::float32, {6, 4}};
    const auto x = padded.part(kWhole);
    const auto first = padded.add("perigee::reshape", {{"self", x}}, two);
    const auto second = padded.add("perigee::reshape", {{"self", first}}, flat);
    padded.output(padded.add("aten::neg", {{"self", second}}, flat));
    if (shared) padded.output(padded.add("aten::neg", {{"self", first}}, two));
    const auto simple = compile::simplify_views(padded.graph);
    graph::verify(simple);
    for (const auto& node : simple.nodes) {
      if (node.op != "perigee::reshape" || simple.type(node.outputs[0]) != flat) continue;
      CHECK((node.get<ValueId>("self", {}) == x) == !shared);
    }
    CHECK(ops(simple).size() == (shared ? 4U : 2U));
  }
}
