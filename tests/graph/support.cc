#include "tests/graph/support.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

namespace perigee::graph {

Graph two_layers() {
  using enum Input::Kind;
  Graph g;
  g.scopes = {{"", "Net"}, {"fc1", "Linear"}, {"fc2", "Linear"}};
  const auto f32 = [](std::vector<int64_t> shape) { return TensorType{DType::float32, shape}; };
  const auto w1 = g.add_input(parameter, "fc1.weight", f32({16, 8}));
  const auto w2 = g.add_input(parameter, "fc2.weight", f32({4, 16}));
  const auto x = g.add_input(data, "x", f32({2, 8}));
  const auto call = [&](std::string op, std::vector<std::pair<std::string, Arg>> args,
                        std::vector<int64_t> shape, std::string scope, NodeId of = -2) {
    const auto phase = of == -2 ? Phase::forward : Phase::backward;
    const auto out = g.add_node(std::move(op), std::move(args), {f32(shape)}, scope, phase)[0];
    if (of >= 0) g.nodes.back().forward_node = of;
    return out;
  };
  const auto t1 = call("aten::t", {{"self", w1}}, {8, 16}, "fc1");
  const auto h = call("aten::mm", {{"self", x}, {"mat2", t1}}, {2, 16}, "fc1");
  const auto a = call("aten::relu", {{"self", h}}, {2, 16}, "");
  const auto t2 = call("aten::t", {{"self", w2}}, {16, 4}, "fc2");
  const auto y = call("aten::mm", {{"self", a}, {"mat2", t2}}, {2, 4}, "fc2");
  const auto loss = call("aten::sum", {{"self", y}}, {}, "");
  const auto one = call("perigee::full", {{"value", 1.0}}, {2, 4}, "", 5);
  const auto one_t = call("aten::t", {{"self", one}}, {4, 2}, "fc2", 4);
  const auto dw2 = call("aten::mm", {{"self", one_t}, {"mat2", a}}, {4, 16}, "fc2", 4);
  const auto da = call("aten::mm", {{"self", one}, {"mat2", w2}}, {2, 16}, "fc2", 4);
  const auto dh = call("aten::threshold_backward",
                       {{"grad_output", da}, {"self", a}, {"threshold", int64_t{0}}}, {2, 16}, "",
                       2);
  const auto dh_t = call("aten::t", {{"self", dh}}, {16, 2}, "fc1", 1);
  const auto dw1 = call("aten::mm", {{"self", dh_t}, {"mat2", x}}, {16, 8}, "fc1", 1);
  g.outputs = {{Output::Kind::loss, "loss", loss},
               {Output::Kind::gradient, "fc1.weight", dw1},
               {Output::Kind::gradient, "fc2.weight", dw2}};
  return g;
}

namespace {

class Random {
 public:
  Random(uint64_t seed, int nodes) : engine_(seed), nodes_(nodes) {}

  Graph graph() {
    g_.scopes = {
        {"", "Net"}, {"a", "Block"}, {"a.b c", "Strange\n\"type\"\\"}, {"d", "x\x01\x7f\xc3\xa9"}};
    for (int i = 0; i < 4; ++i) {
      const auto kind = static_cast<Input::Kind>(i);
      g_.add_input(kind, i == 1 ? "a buffer" : "input." + std::to_string(i), type());
      auto& input = g_.inputs.back();
      if (i == 0) input.trainable = below(2);
      if (i == 3) {
        input.data.resize(g_.type(input.value).bytes());
        for (auto& c : input.data) c = static_cast<char>(below(256));
      }
      known_.push_back(input.value);
    }
    for (int i = 0; i < nodes_; ++i) node();
    g_.outputs.push_back({Output::Kind::result, "last one", known_.back()});
    g_.outputs.push_back({Output::Kind::result, "", known_[below(known_.size())]});
    return std::move(g_);
  }

 private:
  uint64_t below(uint64_t n) { return engine_() % n; }

  TensorType type() {
    TensorType t{static_cast<DType>(below(14)), {}};
    for (auto n = below(4); n > 0; --n) t.shape.push_back(static_cast<int64_t>(below(5)));
    return t;
  }

  ValueId value() { return below(8) == 0 ? ValueId{} : known_[below(known_.size())]; }

  double number() {
    constexpr auto infinity = std::numeric_limits<double>::infinity();
    const double special[] = {0.0, -0.0, 1.0, -3.0, 1e300, 5e-324, 0.1, infinity, -infinity, 1e22};
    if (below(2)) return special[below(10)];
    return std::ldexp(static_cast<double>(engine_()), static_cast<int>(below(200)) - 150);
  }

  template <class F>
  auto list(F item) {
    std::vector<decltype(item())> out;
    for (auto n = below(4); n > 0; --n) out.push_back(item());
    return out;
  }

  Arg argument() {
    switch (below(11)) {
      case 0:
        return std::monostate{};
      case 1:
        return value();
      case 2:
        return list([&] { return value(); });
      case 3:
        return below(2) == 0;
      case 4:
        return static_cast<int64_t>(engine_());
      case 5:
        return number();
      case 6: {
        std::string text;
        for (auto n = below(12); n > 0; --n) text += static_cast<char>(below(256));
        return text;
      }
      case 7:
        return static_cast<DType>(below(14));
      case 8:
        return list([&] { return static_cast<int64_t>(below(100)) - 50; });
      case 9:
        return list([&] { return number(); });
      default:
        return list([&] { return below(2) == 0; });
    }
  }

  void node() {
    const char* ops[] = {"aten::add.Tensor", "aten::mm", "perigee::attention", "comm::all_reduce"};
    std::vector<std::pair<std::string, Arg>> args;
    for (auto n = below(5); n > 0; --n) args.emplace_back("arg" + std::to_string(n), argument());
    std::vector<TensorType> types;
    for (auto n = 1 + below(3); n > 0; --n) types.push_back(type());
    const auto count = static_cast<NodeId>(g_.nodes.size());
    const auto outputs = g_.add_node(ops[below(4)], std::move(args), std::move(types),
                                     g_.scopes[below(4)].path,
                                     below(2) ? Phase::forward : Phase::backward);
    if (g_.nodes.back().phase == Phase::backward && count > 0 && below(2)) {
      g_.nodes.back().forward_node = static_cast<NodeId>(below(count));
    }
    // The last result may be undefined.
    if (outputs.size() > 1 && below(3) == 0) {
      g_.nodes.back().outputs.back() = {};
      g_.values.pop_back();
    }
    for (auto v : g_.nodes.back().outputs) {
      if (v.defined()) known_.push_back(v);
    }
  }

  std::mt19937_64 engine_;
  int nodes_;
  Graph g_;
  std::vector<ValueId> known_;
};

}  // namespace

Graph random_graph(uint64_t seed, int nodes) { return Random(seed, nodes).graph(); }

Graph shuffle_values(Graph g, uint64_t seed) {
  std::vector<int32_t> to(g.values.size());
  std::iota(to.begin(), to.end(), 0);
  std::shuffle(to.begin(), to.end(), std::mt19937_64(seed));
  std::vector<Value> values(g.values.size());
  for (size_t i = 0; i < to.size(); ++i) values[to[i]] = g.values[i];
  g.values = std::move(values);
  const auto move = [&](ValueId& v) {
    if (v.defined()) v.index = to[v.index];
  };
  for (auto& input : g.inputs) move(input.value);
  for (auto& output : g.outputs) move(output.value);
  for (auto& node : g.nodes) {
    node.each_operand(move);
    for (auto& v : node.outputs) move(v);
  }
  return g;
}

}  // namespace perigee::graph
