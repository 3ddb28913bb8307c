#include "tests/parity/support/support.h"

#include <map>

#include "base/fail.h"
#include "exec/ops/op.h"
#include "exec/tensor.h"
#include "tests/support/torch_test.h"

namespace perigee::parity {
namespace {

using graph::Graph;
using graph::Node;
using shard::LocalGraph;

std::string key_of(const graph::Output& output) {
  if (output.kind == graph::Output::Kind::loss) return "loss";
  if (output.kind == graph::Output::Kind::gradient) return "gradient:" + output.name;
  if (output.kind == graph::Output::Kind::buffer) return "buffer:" + output.name;
  return output.name;
}

at::Tensor reduce(const std::vector<at::Tensor>& parts, const std::string& op) {
  auto result = parts[0].clone();
  for (size_t i = 1; i < parts.size(); ++i) {
    if (op == "max") {
      result = at::maximum(result, parts[i]);
    } else if (op == "min") {
      result = at::minimum(result, parts[i]);
    } else {
      result = result + parts[i];
    }
  }
  return op == "avg" ? result / static_cast<double>(parts.size()) : result;
}

at::Tensor part(const at::Tensor& tensor, int64_t dim, int64_t parts, int64_t index) {
  const auto range = mesh::split(tensor.size(dim), parts, index);
  return tensor.narrow(dim, range.begin, range.length);
}

class Machine {
 public:
  Machine(const std::vector<LocalGraph>& locals, const mesh::Mesh& mesh, const exec::Draw& draw)
      : locals_(locals), mesh_(mesh), draw_(draw), next_(locals.size(), 0) {
    std::vector<std::string> all;
    for (const auto& axis : mesh.axes) all.push_back(axis.name);
    ranks_ = all.empty() ? std::vector<int64_t>{0} : mesh::groups(mesh, all).at(0);
    for (size_t i = 0; i < ranks_.size(); ++i) position_[ranks_[i]] = i;
    for (const auto& local : locals) values_.emplace_back(local.graph.values.size());
  }

  const std::vector<int64_t>& ranks() const { return ranks_; }
  std::vector<at::Tensor>& values(size_t i) { return values_[i]; }

  void run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (size_t i = 0; i < locals_.size(); ++i) moved |= run_rank(i);
      for (size_t i = 0; i < locals_.size(); ++i) moved |= meet(i);
    }
    for (size_t i = 0; i < locals_.size(); ++i) {
      if (!done(i)) fail("test", "rank {} waits forever in {}", ranks_[i], at(i).op);
    }
  }

 private:
  bool done(size_t i) const { return next_[i] == locals_[i].graph.nodes.size(); }
  const Node& at(size_t i) const { return locals_[i].graph.nodes[next_[i]]; }

  at::Tensor operand(size_t i, const Node& node) const {
    const auto v = node.get<graph::ValueId>("self", {});
    return v.defined() ? values_[i][v.index] : at::Tensor();
  }

  void set(size_t i, const Node& node, size_t r, const at::Tensor& tensor) {
    const auto v = node.outputs[r];
    if (!v.defined()) return;
    const auto& type = locals_[i].graph.type(v);
    if (!tensor.defined() || exec::type_of(tensor) != type) {
      fail("test", "result {} of {} on rank {} must be {}, but got {}", r, node.op, ranks_[i],
           exec::to_string(type),
           tensor.defined() ? exec::to_string(exec::type_of(tensor)) : "none");
    }
    values_[i][v.index] = tensor;
  }

  // Runs the rank up to its next collective.
  bool run_rank(size_t i) {
    bool moved = false;
    for (; !done(i) && !at(i).op.starts_with("comm::"); ++next_[i], moved = true) {
      const auto& node = at(i);
      std::vector<at::Tensor> operands, outputs(node.outputs.size());
      node.each_operand([&](graph::ValueId v) { operands.push_back(values_[i][v.index]); });
      exec::reference_kernel(exec::op_of(locals_[i].graph, node))(operands, outputs, draw_);
      for (size_t r = 0; r < outputs.size(); ++r) set(i, node, r, outputs[r]);
    }
    return moved;
  }

  // Runs the collective that rank i waits for if its whole group waits for the same one.
  bool meet(size_t i) {
    if (done(i) || !at(i).op.starts_with("comm::")) return false;
    const Node& node = at(i);
    const auto axes = mesh::AxisSet::parse(node.get<std::string>("axis", ""));
    std::vector<size_t> group;
    for (auto rank : mesh::group_of(mesh_, axes, ranks_[i])) group.push_back(position_.at(rank));
    std::vector<at::Tensor> given;
    for (size_t k = 0; k < group.size(); ++k) {
      const size_t j = group[k];
      if (done(j) || at(j).op != node.op || at(j).args.size() != node.args.size()) return false;
      for (size_t a = 1; a < node.args.size(); ++a) {
        if (at(j).args[a] != node.args[a]) return false;
      }
      given.push_back(operand(j, at(j)));
    }
    const auto n = static_cast<int64_t>(group.size());
    for (int64_t k = 0; k < n; ++k) {
      const size_t j = group[k];
      set(j, at(j), 0,
          node.op == "comm::exchange" ? exchanged(j, given, n, k) : combined(node, given, n, k));
    }
    for (size_t j : group) ++next_[j];
    return true;
  }

  // The rows that position k receives, and zeros.
  at::Tensor exchanged(size_t j, const std::vector<at::Tensor>& given, int64_t n, int64_t k) const {
    const auto& node = at(j);
    auto counts = values_[j][node.get<graph::ValueId>("counts", {}).index];
    if (node.get<bool>("back", false)) counts = counts.t();
    auto result = at::zeros(locals_[j].graph.type(node.outputs[0]).shape, given[0].options());
    int64_t to = 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto rows = counts[i][k].item<int64_t>();
      const auto from = counts[i].narrow(0, 0, k).sum().item<int64_t>();
      result.narrow(0, to, rows).copy_(given[i].narrow(0, from, rows));
      to += rows;
    }
    return result;
  }

  static at::Tensor combined(const Node& node, const std::vector<at::Tensor>& given, int64_t n,
                             int64_t k) {
    const auto op = node.get<std::string>("op", "sum");
    const auto dim = node.get<int64_t>("dim", 0);
    if (node.op == "comm::all_reduce") return reduce(given, op);
    if (node.op == "comm::all_gather") return at::cat(given, dim);
    if (node.op == "comm::shift") return given[(k + n - 1) % n];
    if (node.op == "comm::reduce_scatter") return part(reduce(given, op), dim, n, k).contiguous();
    if (node.op == "comm::all_to_all") {
      std::vector<at::Tensor> pieces;
      for (const auto& tensor : given) {
        pieces.push_back(part(tensor, node.get<int64_t>("split_dim", 0), n, k));
      }
      return at::cat(pieces, node.get<int64_t>("cat_dim", 0));
    }
    fail("test", "{} is not known here", node.op);
  }

  const std::vector<LocalGraph>& locals_;
  const mesh::Mesh& mesh_;
  const exec::Draw draw_;
  std::vector<int64_t> ranks_;          // in mesh order
  std::map<int64_t, size_t> position_;  // rank -> index
  std::vector<size_t> next_;            // per rank: the node it is at
  std::vector<std::vector<at::Tensor>> values_;
};

// Assembles the ranks' outputs.
at::Tensor global_of(const std::vector<at::Tensor>& parts, const mesh::Placements& placements,
                     const std::vector<int64_t>& shape, const mesh::Mesh& mesh,
                     const std::vector<int64_t>& ranks) {
  auto total = at::zeros(shape, parts[0].options());
  auto seen = at::zeros(shape, at::kLong);
  for (size_t i = 0; i < parts.size(); ++i) {
    auto place = piece_of(total, placements, mesh, ranks[i]);
    auto count = piece_of(seen, placements, mesh, ranks[i]);
    const auto position = mesh::coordinates(mesh, ranks[i]);
    // Replicas must equal the first one. Partial values are summed.
    bool first = true;
    auto reduce = mesh::Reduce::sum;
    for (size_t a = 0; a < placements.size(); ++a) {
      if (placements[a].is_replicate() && position[a] != 0) first = false;
      if (placements[a].is_partial()) reduce = placements[a].reduce;
    }
    if (reduce != mesh::Reduce::sum) fail("test", "outputs are sums");
    if (!first) continue;
    place.add_(parts[i]);
    count.add_(1);
  }
  for (size_t i = 0; i < parts.size(); ++i) {
    bool partial = false;
    for (const auto& p : placements) partial |= p.is_partial();
    if (partial) break;
    if (!difference(piece_of(total, placements, mesh, ranks[i]), parts[i], 1e-13).empty()) {
      fail("test", "replicas of an output differ on rank {}", ranks[i]);
    }
  }
  if (shape.empty() || seen.numel() == 0) return total;
  if (seen.min().item<int64_t>() < 1) fail("test", "the parts of an output leave a hole");
  return total;
}

}  // namespace

std::vector<LocalGraph> partition_all(const Graph& graph, const plan::Plan& plan) {
  const auto sharding = shard::propagate(graph, plan);
  std::vector<std::string> all;
  for (const auto& axis : plan.mesh.axes) all.push_back(axis.name);
  std::vector<LocalGraph> locals;
  const auto groups = mesh::groups(plan.mesh, all);
  for (auto rank : groups.at(0)) {
    locals.push_back(shard::partition(graph, sharding, plan, rank));
  }
  return locals;
}

at::Tensor piece_of(const at::Tensor& global, const mesh::Placements& placements,
                    const mesh::Mesh& mesh, int64_t rank) {
  auto piece = global;
  const auto ranges = mesh::local_ranges(global.sizes().vec(), placements, mesh, rank);
  for (size_t d = 0; d < ranges.size(); ++d) {
    piece = piece.narrow(static_cast<int64_t>(d), ranges[d].begin, ranges[d].length);
  }
  return piece;
}

exec::Tensors evaluate_ranks(const std::vector<LocalGraph>& locals, const mesh::Mesh& mesh,
                             const exec::Tensors& inputs, const exec::Draw& draw) {
  at::NoGradGuard no_grad;
  Machine machine(locals, mesh, draw);
  const auto& ranks = machine.ranks();
  for (size_t i = 0; i < locals.size(); ++i) {
    const auto& graph = locals[i].graph;
    for (size_t k = 0; k < graph.inputs.size(); ++k) {
      const auto& input = graph.inputs[k];
      auto& value = machine.values(i)[input.value.index];
      if (input.kind == graph::Input::Kind::constant) {
        value = exec::from_bytes(graph.type(input.value), input.data);
      } else {
        // A copy, which ops may write to.
        value = piece_of(inputs.at(input.name), locals[i].inputs[k], mesh, ranks[i])
                    .clone(at::MemoryFormat::Contiguous);
      }
    }
  }
  machine.run();
  exec::Tensors outputs;
  for (size_t o = 0; o < locals[0].graph.outputs.size(); ++o) {
    const auto& placements = locals[0].outputs[o];
    std::vector<at::Tensor> parts;
    std::vector<int64_t> shape;
    for (size_t i = 0; i < locals.size(); ++i) {
      parts.push_back(machine.values(i)[locals[i].graph.outputs[o].value.index]);
      // The last rank of every sharded dim ends where the global tensor ends; sizes add up over the
      // first line of ranks.
      shape.resize(parts[0].dim(), 0);
    }
    for (int64_t d = 0; d < parts[0].dim(); ++d) {
      for (size_t i = 0; i < locals.size(); ++i) {
        const auto position = mesh::coordinates(mesh, ranks[i]);
        bool on_line = true;
        for (size_t a = 0; a < placements.size(); ++a) {
          if (placements[a] != mesh::Placement::shard(static_cast<int>(d)) && position[a] != 0) {
            on_line = false;
          }
        }
        if (on_line) shape[d] += parts[i].size(d);
      }
    }
    outputs[key_of(locals[0].graph.outputs[o])] = global_of(parts, placements, shape, mesh, ranks);
  }
  return outputs;
}

std::string difference(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.sizes() != b.sizes()) return fmt::format("shapes {} and {}", a.dim(), b.dim());
  if (a.numel() == 0) return "";
  if (a.is_complex()) return difference(at::view_as_real(a), at::view_as_real(b), tolerance);
  const auto x = a.to(at::kDouble), y = b.to(at::kDouble);
  const auto same = at::isclose(x, y, 0, 0, true);
  const auto scale = std::max(1.0, at::nan_to_num(y, 0, 0, 0).abs().max().item<double>());
  const auto distances = at::where(same, at::zeros_like(x), (x - y).abs());
  const double most = at::nan_to_num(distances, 1e300, 1e300).max().item<double>();
  return most <= tolerance * scale ? "" : fmt::format("{} apart", most);
}

}  // namespace perigee::parity
