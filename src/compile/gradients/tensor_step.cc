#include "compile/gradients/tensor_step.h"

#include <algorithm>
#include <map>

#include "base/defect.h"
#include "compile/draft/layout.h"
#include "compile/gradients/state.h"
#include "graph/ops.h"

namespace perigee::compile {

using graph::DType;
using graph::Graph;
using graph::Input;
using graph::TensorType;

namespace {

using Args = std::vector<std::pair<std::string, graph::Arg>>;

// Returns the parameter of which a value is a view or a cast, or nullptr.
const Input* viewed_parameter(const Graph& graph, graph::ValueId v) {
  while (v.defined() && graph.values[v.index].producer >= 0) {
    const auto& node = graph.nodes[graph.values[v.index].producer];
    const bool passes = graph::is_view(node.op) || node.op == "perigee::reshape" ||
                        node.op == "perigee::cast" || node.op.starts_with("perigee::fp8");
    if (!passes) return nullptr;
    v = {};
    node.each_operand([&](graph::ValueId operand) {
      if (!v.defined()) v = operand;
    });
  }
  if (!v.defined()) return nullptr;
  for (const auto& input : graph.inputs) {
    if (input.value == v) return input.kind == Input::Kind::parameter ? &input : nullptr;
  }
  return nullptr;
}

// Returns the node's first operand of floating type with as many elements as its result.
graph::ValueId first_of_size(const Graph& graph, const graph::Node& node) {
  const auto elements = graph.type(node.outputs[0]).numel();
  graph::ValueId first;
  node.each_operand([&](graph::ValueId v) {
    const auto& type = graph.type(v);
    const bool same = graph::is_floating(type.dtype) && type.numel() == elements;
    if (same && !first.defined()) first = v;
  });
  return first;
}

// Returns the parameters that embeddings look up, and those whose product is a loss's logits.
std::set<std::string> embeddings_and_heads(const Graph& graph) {
  std::set<std::string> names;
  const auto add = [&](graph::ValueId v) {
    if (const auto* parameter = viewed_parameter(graph, v)) names.insert(parameter->name);
  };
  for (const auto& node : graph.nodes) {
    if (node.phase != graph::Phase::forward) continue;
    if (node.op == "aten::embedding") add(node.get<graph::ValueId>("weight", {}));
    const bool loss = node.op == "perigee::cross_entropy" || node.op == "aten::_log_softmax" ||
                      node.op == "perigee::nll" || node.op == "aten::logsumexp";
    if (!loss) continue;
    auto v = node.get<graph::ValueId>(node.op == "perigee::cross_entropy" ? "logits" : "self", {});
    while (v.defined() && graph.values[v.index].producer >= 0) {
      const auto& maker = graph.nodes[graph.values[v.index].producer];
      if (maker.op == "aten::mm" || maker.op == "aten::addmm" || maker.op == "aten::bmm" ||
          maker.op == "aten::_scaled_mm") {
        maker.each_operand(add);
        break;
      }
      // Views, and ops that change each number, such as a scale or a cap.
      v = maker.outputs.size() == 1 ? first_of_size(graph, maker) : graph::ValueId{};
    }
  }
  return names;
}

const std::vector<int64_t>& parameter_shape(const Graph& graph, const std::string& parameter) {
  return graph.type(graph.find_input(parameter)->value).shape;
}

std::vector<int64_t> with_last_dim_reduced(std::vector<int64_t> shape, size_t from_end) {
  shape[shape.size() - from_end] = 1;
  return shape;
}

int64_t product(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (const auto size : sizes) n *= size;
  return n;
}

// Returns the axes that a parameter is sharded on.
mesh::AxisSet axes_of(const Source& source, const Gradients& gradients, int32_t p) {
  const auto& parameter = gradients.parameters[p];
  const auto& bucket = gradients.buckets[parameter.bucket];
  const auto unit = bucket.level > 0 ? gradients.flats[bucket.flat].unit->axes : mesh::AxisSet();
  return unit.joined(parameter.shard_axes, source.plan.mesh);
}

const std::string& name_of(const Source& source, const Gradients& gradients, int32_t p) {
  return source.local.graph.inputs[gradients.parameters[p].input].name;
}

// The pieces of one parameter, as the operands of an op.
struct Pieces {
  std::vector<ValueId> weights, gradients;
  std::vector<ValueId> states;  // the first state of each piece
  std::vector<int64_t> begins;  // first index of each piece in each dim
};

Pieces pieces_of(const Gradients& gradients, int32_t p) {
  Pieces all;
  for (const auto& piece : gradients.pieces) {
    if (piece.parameter != p) continue;
    all.weights.push_back(piece.weights);
    all.gradients.push_back(piece.gradients);
    if (!piece.states.empty()) all.states.push_back(piece.states.front());
    for (const auto& range : piece.ranges) all.begins.push_back(range.begin);
  }
  return all;
}

// Returns the optimizer that updates the parameters that `optimizer` does not.
const optim::Description& others_of(const optim::Description& optimizer) {
  const auto* others = optim::find_optimizer(optimizer.others);
  if (!others) fail_defect("compile", "{} has no optimizer for other parameters", optimizer.name);
  return *others;
}

std::vector<ValueId> join(std::vector<ValueId> a, const std::vector<ValueId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

bool steps_by_tensor(const StepSpec& spec) {
  const auto* optimizer = optimizer_of(spec);
  return optimizer && !optimizer->is_elementwise();
}

TensorStates::TensorStates(const Graph& graph, const StepSpec& spec)
    : graph_(graph), spec_(spec), optimizer_(optimizer_of(spec)) {
  if (!optimizer_ || optimizer_->update != optim::UpdateKind::orthogonalized) return;
  const auto others = embeddings_and_heads(graph);
  for (const auto& input : graph.inputs) {
    if (input.kind != Input::Kind::parameter) continue;
    const auto group = group_of(spec, input.name);
    const bool matrix = graph.type(input.value).shape.size() == 2;
    const auto by_others = group == 0 ? std::nullopt : spec.groups[group - 1].others;
    if (!by_others.value_or(true) && !matrix) {
      fail("compile", "{} steps matrices, but a group wants it to step {}, which has {} dims",
           optimizer_->name, input.name, graph.type(input.value).shape.size());
    }
    if (!by_others.value_or(!matrix || others.contains(input.name))) {
      orthogonalized_.insert(input.name);
    }
  }
}

std::vector<TensorState> TensorStates::of(const std::string& parameter) const {
  if (!steps_by_tensor(spec_)) return {};
  const auto& states = optimizer_->states;
  if (optimizer_->update == optim::UpdateKind::orthogonalized) {
    if (is_orthogonalized(parameter)) return {{states[0].name, false, {}}};
    std::vector<TensorState> all;
    for (auto& name : optim::flat_states(others_of(*optimizer_), spec_.options)) {
      all.push_back({std::move(name), false, {}});
    }
    return all;
  }
  const auto& shape = parameter_shape(graph_, parameter);
  if (shape.size() < 2) return {{states[2].name, false, {}}};
  return {{states[0].name, true, with_last_dim_reduced(shape, 1)},
          {states[1].name, true, with_last_dim_reduced(shape, 2)}};
}

void make_tensor_states(Draft& draft, const Source& source, Gradients& gradients) {
  const TensorStates states(source.whole, source.spec);
  const Home home{.kind = Home::Kind::persistent, .host = source.plan.offload.optimizer};
  for (size_t p = 0; p < gradients.parameters.size(); ++p) {
    auto& parameter = gradients.parameters[p];
    if (!parameter.gradient.defined()) continue;
    const auto& name = name_of(source, gradients, static_cast<int32_t>(p));
    const auto& shape = parameter_shape(source.whole, name);
    const auto dtype = gradients.buckets[parameter.bucket].dtype;
    for (const auto& state : states.of(name)) {
      const auto full = state_name(state.name, name);
      const auto bind = [&](const std::vector<int64_t>& whole, std::vector<mesh::Range> ranges) {
        std::vector<int64_t> held;
        for (const auto& range : ranges) held.push_back(range.length);
        Binding binding{.kind = Binding::Kind::state, .name = full.text, .parameter = name};
        binding.value = draft.add({dtype, held}, full, home);
        binding.shape = whole;
        binding.ranges = std::move(ranges);
        const auto value = binding.value;
        draft.bind(std::move(binding));
        return value;
      };
      if (state.whole) {
        std::vector<mesh::Range> ranges;
        for (const auto size : state.shape) ranges.push_back({0, size});
        parameter.whole_states.push_back(bind(state.shape, std::move(ranges)));
      } else {
        for (auto& piece : gradients.pieces) {
          if (piece.parameter != static_cast<int32_t>(p)) continue;
          piece.states.push_back(bind(shape, piece.ranges));
        }
      }
    }
  }
}

namespace {

class TensorStep {
 public:
  TensorStep(Draft& draft, const Source& source, const Gradients& gradients,
             const StepValues& values, const std::function<ValueId(int32_t)>& learning_rate,
             const std::function<graph::Arg(int32_t)>& weight_decay,
             std::vector<DraftInstruction>& out)
      : draft_(draft),
        source_(source),
        gradients_(gradients),
        values_(values),
        learning_rate_(learning_rate),
        weight_decay_(weight_decay),
        out_(out),
        optimizer_(*optimizer_of(source.spec)) {}

  // The parameters that are sharded on the same axes share one all-reduce of their sums of squares
  // and one of the norms of their updates.
  void factored(const std::vector<int32_t>& parameters) {
    std::map<mesh::AxisSet, std::vector<int32_t>, mesh::TextOrder> by_axes;
    for (const auto p : parameters) by_axes[axes_of(source_, gradients_, p)].push_back(p);
    for (const auto& [axes, members] : by_axes) {
      std::vector<int64_t> offsets{0};
      for (const auto p : members) {
        const auto& shape = shape_of(p);
        int64_t count = 1;  // the sum of the weights' squares
        if (shape.size() > 1) {
          count += product(shape) / std::max<int64_t>(1, shape.back()) +
                   product(shape) / std::max<int64_t>(1, shape[shape.size() - 2]);
        }
        offsets.push_back(offsets.back() + count);
      }
      const auto sums = shared({DType::float64, {offsets.back()}}, "adafactor sums", axes);
      const auto norms = shared({DType::float64, {std::ssize(members)}}, "adafactor norms", axes);
      for (size_t k = 0; k < members.size(); ++k) {
        const auto p = members[k];
        const auto pieces = pieces_of(gradients_, p);
        const auto part = slice(sums, offsets[k], offsets[k + 1] - offsets[k]);
        out_.push_back(in_place("perigee::adafactor_sums_",
                                {{"self", part},
                                 {"weights", pieces.weights},
                                 {"gradients", pieces.gradients},
                                 {"scale", values_.scale},
                                 {"begins", pieces.begins},
                                 {"shape", shape_of(p)}},
                                {part}));
      }
      if (!axes.empty()) out_.push_back(all_reduce(draft_, sums, Stream::over(axes), "sum"));
      for (size_t k = 0; k < members.size(); ++k) {
        const auto p = members[k];
        const auto pieces = pieces_of(gradients_, p);
        const auto part = slice(sums, offsets[k], offsets[k + 1] - offsets[k]);
        const auto norm = slice(norms, static_cast<int64_t>(k), 1);
        auto args = common(p, pieces, {{"self", norm}, {"sums", part}});
        args.emplace_back("beta2_decay", attribute("beta2_decay"));
        auto written = join({norm}, gradients_.parameters[p].whole_states);
        out_.push_back(in_place("perigee::adafactor_moments_", std::move(args),
                                join(std::move(written), pieces.states)));
      }
      if (!axes.empty()) out_.push_back(all_reduce(draft_, norms, Stream::over(axes), "sum"));
      for (size_t k = 0; k < members.size(); ++k) {
        const auto p = members[k];
        const auto pieces = pieces_of(gradients_, p);
        if (pieces.weights.empty()) continue;
        const auto part = slice(sums, offsets[k], offsets[k + 1] - offsets[k]);
        auto args = common(p, pieces,
                           {{"weights", pieces.weights},
                            {"sums", part},
                            {"norm", slice(norms, static_cast<int64_t>(k), 1)},
                            {"lr", learning_rate_(group(p))}});
        args.emplace_back("clip_threshold", attribute("clip_threshold"));
        args.emplace_back("weight_decay", decay(p));
        out_.push_back(in_place("perigee::adafactor_", std::move(args), pieces.weights));
      }
    }
  }

  // Every rank gets a matrix's whole update by an all-reduce of pieces in zeros: one rank holds
  // each element, hence the sum is exact. Every rank orthogonalizes it and applies its own pieces.
  void orthogonalized(int32_t p) {
    const auto axes = axes_of(source_, gradients_, p);
    const auto pieces = pieces_of(gradients_, p);
    const auto dtype = gradients_.buckets[gradients_.parameters[p].bucket].dtype;
    const auto& full = shape_of(p);
    const int64_t small = std::min(full[0], full[1]);
    const auto update = shared({dtype, full}, "muon update", axes);
    out_.push_back(in_place("perigee::muon_update_",
                            {{"self", update},
                             {optimizer_.states[0].name, pieces.states},
                             {"gradients", pieces.gradients},
                             {"scale", values_.scale},
                             {"begins", pieces.begins},
                             {"momentum", attribute("momentum")},
                             {"nesterov", attribute("nesterov")}},
                            join({update}, pieces.states)));
    if (!axes.empty()) out_.push_back(all_reduce(draft_, update, Stream::over(axes), "sum"));
    if (pieces.weights.empty()) return;
    const auto squares = draft_.add({dtype, {2, small, small}}, "muon squares");
    const auto other = draft_.add({dtype, full}, "muon product");
    out_.push_back(in_place("perigee::orthogonalize_",
                            {{"squares", squares},
                             {"other", other},
                             {"self", update},
                             {"steps", attribute("ns_steps")}},
                            {squares, other, update}));
    out_.push_back(in_place("perigee::muon_",
                            {{"weights", pieces.weights},
                             {"update", update},
                             {"lr", learning_rate_(group(p))},
                             {"scale", values_.scale},
                             {"begins", pieces.begins},
                             {"weight_decay", decay(p)}},
                            pieces.weights));
  }

  void elementwise(int32_t p) {
    const auto& others = others_of(optimizer_);
    for (const auto& piece : gradients_.pieces) {
      if (piece.parameter != p) continue;
      out_.push_back(elementwise_update(others, source_.spec,
                                        {.weights = piece.weights,
                                         .states = piece.states,
                                         .gradients = piece.gradients,
                                         .learning_rate = learning_rate_(group(p)),
                                         .weight_decay = decay(p),
                                         .noise = {}},
                                        values_));
    }
  }

 private:
  const std::vector<int64_t>& shape_of(int32_t p) const {
    return parameter_shape(source_.whole, name_of(source_, gradients_, p));
  }

  int32_t group(int32_t p) const { return group_of(source_.spec, name_of(source_, gradients_, p)); }

  graph::Arg decay(int32_t p) const { return weight_decay_(group(p)); }

  graph::Arg attribute(const char* name) const {
    return attribute_of(optimizer_, source_.spec, name);
  }

  // Returns `args` and the arguments of both ops that read the moments.
  Args common(int32_t p, const Pieces& pieces, Args args) const {
    const auto& whole = gradients_.parameters[p].whole_states;
    for (size_t k = 0; k < whole.size(); ++k) {
      args.emplace_back(optimizer_.states[k].name, whole[k]);
    }
    if (whole.empty()) args.emplace_back(optimizer_.states[2].name, pieces.states);
    args.emplace_back("gradients", pieces.gradients);
    args.emplace_back("scale", values_.scale);
    args.emplace_back("step", values_.step);
    args.emplace_back("begins", pieces.begins);
    args.emplace_back("shape", shape_of(p));
    return args;
  }

  ValueId shared(TensorType type, const std::string& name, const mesh::AxisSet& axes) {
    const Home home = axes.empty()
                          ? Home{}
                          : Home{Home::Kind::communication, draft_.number_of(Stream::over(axes))};
    return draft_.add(std::move(type), name, home);
  }

  ValueId slice(ValueId flat, int64_t begin, int64_t count) {
    return draft_.add_view(flat, begin * static_cast<int64_t>(sizeof(double)),
                           {DType::float64, {count}}, {1}, draft_.value(flat).name);
  }

  Draft& draft_;
  const Source& source_;
  const Gradients& gradients_;
  const StepValues& values_;
  const std::function<ValueId(int32_t)>& learning_rate_;
  const std::function<graph::Arg(int32_t)>& weight_decay_;
  std::vector<DraftInstruction>& out_;
  const optim::Description& optimizer_;
};

}  // namespace

void make_tensor_step(Draft& draft, const Source& source, const Gradients& gradients,
                      const StepValues& values,
                      const std::function<ValueId(int32_t)>& learning_rate,
                      const std::function<graph::Arg(int32_t)>& weight_decay,
                      std::vector<DraftInstruction>& out) {
  const TensorStates states(source.whole, source.spec);
  TensorStep step(draft, source, gradients, values, learning_rate, weight_decay, out);
  std::vector<int32_t> trained;
  for (size_t p = 0; p < gradients.parameters.size(); ++p) {
    if (gradients.parameters[p].gradient.defined()) trained.push_back(static_cast<int32_t>(p));
  }
  if (optimizer_of(source.spec)->update == optim::UpdateKind::factored) {
    return step.factored(trained);
  }
  for (const auto p : trained) {
    const bool whole = states.is_orthogonalized(name_of(source, gradients, p));
    whole ? step.orthogonalized(p) : step.elementwise(p);
  }
}

}  // namespace perigee::compile
