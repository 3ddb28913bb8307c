#include "tests/parity/support/case.h"

#include <fmt/format.h>

#include "base/error.h"
#include "exec/ops/op.h"
#include "exec/tensor.h"
#include "shard/partition.h"
#include "tests/parity/support/support.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {

using graph::DType;
using graph::ValueId;
using mesh::Placement;
using mesh::Placements;

namespace {

bool is_eight_bits(DType dtype) { return graph::is_floating(dtype) && graph::size_of(dtype) == 1; }

}  // namespace

Case::Case(uint64_t seed) : random_(seed) {
  torch::manual_seed(seed);
  const char* names[] = {"data", "tensor", "context"};
  graph_.scopes = {{"", "Case"}};
  const int64_t axes = coin(0.5) ? 1 : coin(0.8) ? 2 : 3;
  for (int64_t a = 0; a < axes; ++a) {
    const int64_t most = axes == 1 ? 6 : axes == 2 ? 4 : 2;
    mesh_.axes.push_back({names[a], any(coin(0.1) ? 1 : 2, most)});
  }
}

int64_t Case::size(int64_t most) { return any(1, coin(0.7) ? most : 2 * most); }

int64_t Case::any(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
}

bool Case::coin(double probability) {
  return static_cast<double>(random_() % 1000) < 1000 * probability;
}

Shape Case::sizes(int most, int least) {
  Shape shape(any(least, most));
  for (auto& s : shape) s = size();
  return shape;
}

int64_t Case::either_way(int64_t dim, int64_t rank) { return coin() ? dim : dim - rank; }

void Case::cut_in_runs(Placements& placements, const Shape& shape) {
  for (auto& p : placements) {
    if (!p.is_shard()) continue;
    const auto size = shape[p.dim];
    const auto plain = p;
    if (coin(0.6)) p.run = any(1, std::max<int64_t>(size / 2, 1));
    p.zigzag = coin(0.4);
    if (size < 2 || !mesh::runs_divide(shape, placements, mesh_)) p = plain;
  }
}

ValueId Case::moved(ValueId v) {
  const auto type = graph_.type(v);
  auto placements = draw_placements(type.shape, false);
  cut_in_runs(placements, type.shape);
  bool pieces = false;
  for (const auto& p : placements) pieces |= p.run != 0 || p.zigzag;
  if (!pieces) return v;
  const auto there = graph_.add_node("aten::clone", {{"self", v}}, {type})[0];
  known_.resize(graph_.values.size());
  known_[there.index] = value(v);
  pins_[there.index] = placements;
  return there;
}

Placements Case::draw_placements(const Shape& shape, bool may_be_partial) {
  const auto rank = static_cast<int>(shape.size());
  Placements placements(mesh_.axes.size());
  for (auto& p : placements) {
    if (may_be_partial && coin(0.2)) {
      p = Placement::partial();
    } else if (rank > 0 && coin(0.6)) {
      p = Placement::shard(static_cast<int>(any(0, rank - 1)));
    }
  }
  return placements;
}

ValueId Case::input(const at::Tensor& tensor, const Placements& placements) {
  const auto name = "x" + std::to_string(graph_.inputs.size());
  const auto v = graph_.add_input(graph::Input::Kind::data, name, exec::type_of(tensor));
  known_.resize(graph_.values.size());
  known_[v.index] = tensor;
  inputs_[name] = tensor;
  pins_[v.index] = placements;
  return v;
}

ValueId Case::placed(const at::Tensor& tensor) {
  auto placements = draw_placements(tensor.sizes().vec(), false);
  for (auto& p : placements) {
    p.zigzag = p.is_shard() && coin(0.3);
    if (!mesh::runs_divide(tensor.sizes().vec(), placements, mesh_)) p.zigzag = false;
  }
  const auto v = input(tensor, placements);
  return coin(0.3) ? moved(v) : v;
}

ValueId Case::real(const Shape& shape, bool may_be_partial) {
  const auto placements = draw_placements(shape, may_be_partial);
  int64_t parts = 0;
  auto above = placements;
  for (size_t a = 0; a < placements.size(); ++a) {
    if (placements[a].is_shard()) above[a].dim += 1;
    if (!placements[a].is_partial()) continue;
    above[a] = Placement::shard(0);
    parts = std::max<int64_t>(parts, 1) * mesh_.axes[a].size;
  }
  if (parts == 0) {
    const auto v = input(at::randn(shape, at::kDouble), placements);
    return coin(0.3) ? moved(v) : v;
  }
  Shape more = shape;
  more.insert(more.begin(), parts + any(0, 2));
  const auto whole = input(at::randn(more, at::kDouble), above);
  const auto sum = graph_.add_node("aten::sum.dim_IntList",
                                   {{"self", whole}, {"dim", std::vector<int64_t>{0}}},
                                   {{DType::float64, shape}})[0];
  known_.resize(graph_.values.size());
  known_[sum.index] = value(whole).sum(0);
  pins_[sum.index] = placements;
  return sum;
}

ValueId Case::real_sharded(const Shape& shape, int dim, size_t axis, bool zigzag) {
  auto placements = draw_placements(shape, false);
  for (auto& p : placements) {
    if (p.is_shard() && p.dim == dim) p = Placement::replicate();
  }
  placements[axis] = Placement::shard(dim, 0, zigzag);
  return input(at::randn(shape, at::kDouble), placements);
}

ValueId Case::real_placed(const Shape& shape, const Placements& placements) {
  return input(at::randn(shape, at::kDouble), placements);
}

ValueId Case::positive(const Shape& shape) { return placed(at::rand(shape, at::kDouble) + 0.1); }

ValueId Case::integers(const Shape& shape, int64_t low, int64_t high) {
  return placed(at::randint(low, high + 1, shape, at::kLong));
}

ValueId Case::booleans(const Shape& shape) { return placed(at::rand(shape) > 0.5); }

ValueId Case::given(const at::Tensor& tensor) { return placed(tensor); }

std::vector<ValueId> Case::call(const std::string& op, Args args, int results) {
  // LibTorch determines the types; an output that it does not return is undefined.
  graph::Node node{op, std::move(args), {}, "", graph::Phase::forward, -1};
  std::vector<at::Tensor> operands, outputs(results);
  node.each_operand([&](ValueId v) { operands.push_back(value(v)); });
  auto described = exec::op_of(graph_, node);
  described.outputs.assign(results, graph::TensorType{});
  exec::dispatcher_kernel(described)(operands, outputs, {});
  std::vector<graph::TensorType> types;
  for (const auto& t : outputs) {
    if (t.defined()) types.push_back(exec::type_of(t));
  }
  const auto made = graph_.add_node(op, node.args, types);
  std::vector<ValueId> found;
  size_t next = 0;
  known_.resize(graph_.values.size());
  for (int r = 0; r < results; ++r) {
    found.push_back(outputs[r].defined() ? made[next++] : ValueId{});
    if (!found[r].defined()) continue;
    graph_.values[found[r].index].result = r;
    known_[found[r].index] = outputs[r].contiguous();
  }
  graph_.nodes.back().outputs = found;
  tested_.push_back(graph_.nodes.size() - 1);
  return found;
}

std::vector<ValueId> Case::typed(const std::string& op, Args args,
                                 std::vector<graph::TensorType> types) {
  const auto made = graph_.add_node(op, std::move(args), std::move(types));
  const auto& node = graph_.nodes.back();
  std::vector<at::Tensor> operands, outputs(made.size());
  node.each_operand([&](ValueId v) { operands.push_back(value(v)); });
  exec::reference_kernel(exec::op_of(graph_, node))(operands, outputs, {.seed = 7});
  known_.resize(graph_.values.size());
  for (size_t r = 0; r < made.size(); ++r) known_[made[r].index] = outputs[r].contiguous();
  tested_.push_back(graph_.nodes.size() - 1);
  return made;
}

std::string Case::run(bool& effective, const std::map<std::string, std::string>& rules) {
  for (size_t n : tested_) {
    for (auto v : graph_.nodes[n].outputs) {
      // Eight-bit floats are never Partial; ops that read them show their values.
      if (!v.defined() || is_eight_bits(graph_.type(v).dtype)) continue;
      graph_.outputs.push_back(
          {graph::Output::Kind::result, "r" + std::to_string(graph_.outputs.size()), v});
      const auto& type = graph_.type(v);
      if (coin(0.4)) {
        const bool real = graph::is_floating(type.dtype);
        auto& pin = pins_[v.index] = draw_placements(type.shape, real);
        if (coin(0.3)) cut_in_runs(pin, type.shape);
      }
    }
  }
  plan::Plan plan;
  plan.graph_hash = graph::structural_hash(graph_);
  plan.mesh = mesh_;
  plan.rules = rules;
  const auto names = graph::value_names(graph_);
  for (const auto& [v, placements] : pins_) plan.placements[names[v]] = placements;
  graph::verify(graph_);
  plan::verify(plan, graph_);
  try {
    const auto sharding = shard::propagate(graph_, plan);
    for (size_t n : tested_) {
      for (const auto& placements : sharding.operands[n]) {
        for (const auto& p : placements) effective |= !p.is_replicate();
      }
      for (const auto& placements : sharding.results[n]) {
        for (const auto& p : placements) effective |= !p.is_replicate();
      }
    }
    const auto locals = partition_all(graph_, plan);
    first_local_ = locals[0].graph;
    const auto outputs = evaluate_ranks(locals, mesh_, inputs_, {.seed = 7});
    for (const auto& output : graph_.outputs) {
      const auto first_difference = difference(outputs.at(output.name), value(output.value));
      if (!first_difference.empty()) return output.name + ": " + first_difference;
    }
  } catch (const Error& error) {
    return error.what();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::string Case::text() const {
  std::string text;
  for (const auto& axis : mesh_.axes) text += fmt::format("{}={} ", axis.name, axis.size);
  text += "\n" + graph::print(graph_);
  const auto names = graph::value_names(graph_);
  for (const auto& [v, placements] : pins_) {
    text += fmt::format("{}: {}\n", names[v], mesh::to_string(placements));
  }
  if (!first_local_.nodes.empty()) text += "first rank: " + graph::print(first_local_);
  return text;
}

}  // namespace perigee::parity
