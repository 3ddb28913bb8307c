// Emits the nodes of a redistribute path.
#include <algorithm>

#include "shard/redistribute.h"

namespace perigee::shard {
namespace {

using graph::ValueId;
using mesh::Placements;
using Args = std::vector<std::pair<std::string, graph::Arg>>;
using Shape = std::vector<int64_t>;

std::string names_of(const mesh::Mesh& mesh, const std::vector<int>& axes) {
  std::string names;
  for (int a : axes) names += (names.empty() ? "" : ",") + mesh.axes[a].name;
  return names;
}

std::string name_of(mesh::Reduce reduce) {
  switch (reduce) {
    case mesh::Reduce::average:
      return "avg";
    case mesh::Reduce::max:
      return "max";
    case mesh::Reduce::min:
      return "min";
    default:
      return "sum";
  }
}

// Whether a slice of the dim of a contiguous tensor is contiguous.
bool leading(const std::vector<int64_t>& shape, int dim) {
  return std::all_of(shape.begin(), shape.begin() + dim, [](int64_t size) { return size == 1; });
}

// Whether this rank is the first of its group over the axes.
bool is_first(const mesh::Mesh& mesh, int64_t rank, const std::vector<int>& axes) {
  const auto position = mesh::coordinates(mesh, rank);
  return std::all_of(axes.begin(), axes.end(), [&](int a) { return position[a] == 0; });
}

class Emission {
 public:
  Emission(graph::Graph& local, ValueId value, graph::DType dtype, const mesh::Mesh& mesh,
           int64_t rank, const graph::Node& consumer)
      : local_(local),
        value_(value),
        dtype_(dtype),
        mesh_(mesh),
        rank_(rank),
        consumer_(consumer) {}

  ValueId run(const RedistributePath& path, const Shape& shape) {
    for (size_t s = 0; s < path.steps.size(); ++s) {
      const auto& step = path.steps[s];
      const bool reorders = step.kind == RedistributeStep::Kind::zigzag,
                 restores = step.kind == RedistributeStep::Kind::restore;
      if ((reorders || restores ? step.ranks : ranks_of(step)) == 1) continue;  // this rank alone
      view(shape_before(step));
      const auto* next = s + 1 < path.steps.size() ? &path.steps[s + 1] : nullptr;
      if (reorders && next && next->kind == RedistributeStep::Kind::slice &&
          next->dim == step.dim) {
        slice_zigzag(*next, step.ranks);
        ++s;
      } else {
        emit_step(step);
      }
    }
    view(shape);
    return value_;
  }

 private:
  Shape shape_before(const RedistributeStep& step) const {
    return mesh::local_shape(step.shape, step.before, mesh_, rank_);
  }
  graph::TensorType type_after(const RedistributeStep& step) const {
    return {dtype_, mesh::local_shape(step.shape, step.after, mesh_, rank_)};
  }
  int64_t ranks_of(const RedistributeStep& step) const {
    int64_t ranks = 1;
    for (int a : step.axes) ranks *= mesh_.axes[a].size;
    return ranks;
  }

  ValueId make(std::string op, Args args, const graph::TensorType& type) {
    return local_.add_node(std::move(op), std::move(args), {type}, consumer_.scope,
                           consumer_.phase)[0];
  }
  // Emits a node and makes its result the current value.
  void emit(std::string op, Args args, const graph::TensorType& type) {
    value_ = make(std::move(op), std::move(args), type);
  }

  void view(const Shape& shape) {
    if (local_.type(value_).shape == shape) return;
    emit("perigee::reshape", {{"self", value_}}, {dtype_, shape});
  }

  ValueId piece(int64_t dim, const mesh::Range& range) {
    auto type = local_.type(value_);
    type.shape[dim] = range.length;
    return make("aten::slice.Tensor",
                {{"self", value_},
                 {"dim", dim},
                 {"start", range.begin},
                 {"end", range.begin + range.length}},
                type);
  }

  // Reorders the chunks of a dim [2n, c] into zigzag order, or back: chunks of the first half
  // alternate with those of the second half from its end.
  void reorder(const RedistributeStep& step) {
    const bool restores = step.kind == RedistributeStep::Kind::restore;
    const auto whole = shape_before(step);
    const int64_t n = step.ranks, dim = step.dim;
    const auto split = [&](Shape counts) {
      counts.push_back(whole[dim] / (2 * n));
      auto shape = whole;
      shape.erase(shape.begin() + dim);
      shape.insert(shape.begin() + dim, counts.begin(), counts.end());
      return shape;
    };
    const auto halves = split({2, n}), pairs = split({n, 2});
    const graph::TensorType half{dtype_, split({n})};
    view(restores ? pairs : halves);
    std::vector<ValueId> parts;
    for (int64_t i : {0, 1}) {
      parts.push_back(make("aten::select.int",
                           {{"self", value_}, {"dim", restores ? dim + 1 : dim}, {"index", i}},
                           half));
    }
    parts[1] = make("aten::flip", {{"self", parts[1]}, {"dims", Shape{dim}}}, half);
    emit("aten::stack", {{"tensors", parts}, {"dim", restores ? dim : dim + 1}},
         {dtype_, restores ? halves : pairs});
    view(whole);
  }

  // A slice of a dim in zigzag order is two pieces of the original dim.
  void slice_zigzag(const RedistributeStep& slice, int64_t ranks) {
    const auto range = mesh::local_ranges(slice.shape, slice.after, mesh_, rank_)[slice.dim];
    std::vector<ValueId> parts;
    for (const auto& part : mesh::zigzag_pieces(slice.shape[slice.dim], ranks, range)) {
      parts.push_back(piece(slice.dim, part));
    }
    emit("aten::cat", {{"tensors", parts}, {"dim", static_cast<int64_t>(slice.dim)}},
         type_after(slice));
  }

  void emit_step(const RedistributeStep& step) {
    const auto type = type_after(step);
    const auto axis = names_of(mesh_, step.axes);
    const auto dim = static_cast<int64_t>(step.dim);
    const auto reduce = name_of(step.reduce);
    switch (step.kind) {
      case RedistributeStep::Kind::all_reduce:
        return emit("comm::all_reduce", {{"self", value_}, {"axis", axis}, {"op", reduce}}, type);
      case RedistributeStep::Kind::reduce_scatter:
        return emit("comm::reduce_scatter",
                    {{"self", value_}, {"axis", axis}, {"dim", dim}, {"op", reduce}}, type);
      case RedistributeStep::Kind::all_gather:
        return emit("comm::all_gather", {{"self", value_}, {"axis", axis}, {"dim", dim}}, type);
      case RedistributeStep::Kind::all_to_all:
        return emit("comm::all_to_all",
                    {{"self", value_},
                     {"axis", axis},
                     {"split_dim", dim},
                     {"cat_dim", static_cast<int64_t>(step.from_dim)}},
                    type);
      case RedistributeStep::Kind::slice: {
        const auto before = mesh::local_ranges(step.shape, step.before, mesh_, rank_)[step.dim];
        const auto after = mesh::local_ranges(step.shape, step.after, mesh_, rank_)[step.dim];
        value_ = piece(dim, {after.begin - before.begin, after.length});
        // Some kernels assume contiguous operands (layer norm's backward, for its statistics). The
        // first rank's piece, the largest, decides, so that all ranks emit the same nodes.
        const auto first = mesh_.order.empty() ? 0 : mesh_.order.front();
        if (!leading(mesh::local_shape(step.shape, step.after, mesh_, first), step.dim)) {
          emit("aten::clone", {{"self", value_}, {"memory_format", int64_t{0}}}, type);
        }
        return;
      }
      case RedistributeStep::Kind::part:
        // Replicas of a maximum, minimum or average are already valid partial values.
        if (step.reduce != mesh::Reduce::sum) return;
        if (is_first(mesh_, rank_, step.axes)) {
          return emit("perigee::reshape", {{"self", value_}, {"part", int64_t{0}}}, type);
        }
        return emit("perigee::full", {{"value", 0.0}, {"part", value_}}, type);
      case RedistributeStep::Kind::zigzag:
      case RedistributeStep::Kind::restore:
        return reorder(step);
    }
  }

  graph::Graph& local_;
  ValueId value_;
  const graph::DType dtype_;
  const mesh::Mesh& mesh_;
  const int64_t rank_;
  const graph::Node& consumer_;
};

}  // namespace

graph::ValueId emit_path(graph::Graph& local, graph::ValueId value, const RedistributePath& path,
                         const graph::TensorType& global, const Placements& to,
                         const mesh::Mesh& mesh, int64_t rank, const graph::Node& consumer) {
  return Emission(local, value, global.dtype, mesh, rank, consumer)
      .run(path, mesh::local_shape(global.shape, to, mesh, rank));
}

}  // namespace perigee::shard
