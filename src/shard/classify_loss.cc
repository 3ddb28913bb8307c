#include <algorithm>

#include "shard/partition.h"

namespace perigee::shard {

namespace {

using graph::Node;
using graph::ValueId;

// How a value depends on the samples of the batch.
enum class Degree {
  none,    // not at all
  mean,    // the same for twice the samples
  sum,     // twice as much for twice the samples
  sample,  // has a dim that runs over samples
  mixed,   // another way
};

class Classifier {
 public:
  explicit Classifier(const graph::Graph& graph)
      : graph_(graph), degrees_(graph.values.size(), Degree::none) {
    plan::Plan probe;
    // One rank: planned like any number of them, and every batch can be cut so.
    probe.mesh.axes = {{"microbatch", 1}};
    probe.batch_axes = "microbatch";
    sharding_ = propagate(graph, probe);
    for (const auto& input : graph.inputs) {
      if (input.kind != graph::Input::Kind::data) continue;
      const auto& shape = graph.type(input.value).shape;
      if (!shape.empty()) batch_ = std::max(batch_, shape[0]);
      degrees_[input.value.index] = shape.empty() ? Degree::none : Degree::sample;
    }
    for (const auto& node : graph.nodes) {
      for (auto v : node.outputs) {
        if (v.defined()) degrees_[v.index] = result(node, v);
      }
    }
  }

  Degree degree(ValueId v) const { return degrees_[v.index]; }

 private:
  Degree operand(const Node& node, std::string_view name) const {
    const auto* arg = node.find(name);
    if (!arg || !std::holds_alternative<ValueId>(*arg)) return Degree::none;
    const auto v = std::get<ValueId>(*arg);
    return v.defined() ? degree(v) : Degree::none;
  }

  double scalar(const Node& node) const {
    const auto* arg = node.find("other");
    if (arg && std::holds_alternative<double>(*arg)) return std::get<double>(*arg);
    if (arg && std::holds_alternative<int64_t>(*arg)) {
      return static_cast<double>(std::get<int64_t>(*arg));
    }
    return 1;
  }

  // A sum over all samples divided by a multiple of how many there are is a mean.
  bool divides_by_batch(double number) const {
    const auto count = static_cast<int64_t>(number);
    return batch_ > 1 && static_cast<double>(count) == number && count > 0 && count % batch_ == 0;
  }

  Degree result(const Node& node, ValueId v) const {
    Degree highest = Degree::none;
    node.each_operand([&](ValueId o) { highest = std::max(highest, degree(o)); });
    if (highest == Degree::none || highest == Degree::mixed) return highest;
    const std::string& op = node.op;
    const Degree self = operand(node, "self"), other = operand(node, "other");
    if (highest == Degree::sample) {
      // Still a dim over samples, or one that only another axis' shape hides.
      if (sharding_.values[v.index].at(0).is_shard()) return Degree::sample;
      if (!graph_.type(v).shape.empty()) return Degree::mixed;
      if (op == "aten::mean" || op == "aten::mean.dim") return Degree::mean;
      if (op == "aten::sum" || op == "aten::sum.dim_IntList" || op == "perigee::label_weight") {
        return Degree::sum;
      }
      if (op.ends_with("_loss") && node.find("reduction") != nullptr) {
        const auto reduction = node.get<int64_t>("reduction", 1);
        return reduction == 1 ? Degree::mean : reduction == 2 ? Degree::sum : Degree::mixed;
      }
      if (op.ends_with("_loss")) return Degree::mean;
      return Degree::mixed;
    }
    if (op == "perigee::step_average") return self;
    if (op == "perigee::reshape" || op == "perigee::expand" || op == "perigee::cast" ||
        op == "aten::neg" || op == "aten::alias" || op == "aten::detach" ||
        op == "aten::mul.Scalar") {
      return self;
    }
    if (op == "aten::div.Scalar") {
      return self == Degree::sum && divides_by_batch(scalar(node)) ? Degree::mean : self;
    }
    if (op == "aten::add.Tensor" || op == "aten::sub.Tensor") {
      if (self == other) return self;
      // A mean of means plus what is the same for all microbatches is right; a sum would count it
      // again.
      return highest == Degree::mean ? Degree::mean : Degree::mixed;
    }
    if (op == "aten::mul.Tensor") {
      return self == Degree::none || other == Degree::none ? highest : Degree::mixed;
    }
    if (op == "aten::div.Tensor") {
      if (other == Degree::none) return self;
      return self == Degree::sum && other == Degree::sum && averaged(node) ? Degree::mean
                                                                           : Degree::mixed;
    }
    return Degree::mixed;
  }

  // Divided by a count that is known for the whole step.
  bool averaged(const Node& node) const {
    auto v = std::get<ValueId>(*node.find("other"));
    while (graph_.values[v.index].producer >= 0) {
      const auto& maker = graph_.nodes[graph_.values[v.index].producer];
      if (maker.op == "perigee::step_average") return true;
      if (maker.op != "perigee::reshape" && maker.op != "perigee::cast") return false;
      v = std::get<ValueId>(*maker.find("self"));
    }
    return false;
  }

  const graph::Graph& graph_;
  Sharding sharding_;
  int64_t batch_ = 0;
  std::vector<Degree> degrees_;
};

}  // namespace

LossKind classify_loss(const graph::Graph& graph) {
  const Classifier classifier(graph);
  for (const auto& output : graph.outputs) {
    if (output.kind != graph::Output::Kind::loss) continue;
    const Degree degree = classifier.degree(output.value);
    if (degree == Degree::none || degree == Degree::mean) return LossKind::mean;
    return degree == Degree::sum ? LossKind::sum : LossKind::mixed;
  }
  return LossKind::mean;
}

}  // namespace perigee::shard
