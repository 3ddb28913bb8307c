#include "shard/redistribute.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <queue>
#include <set>
#include <unordered_map>

#include "base/fail.h"

namespace perigee::shard {
namespace {

using mesh::Placement;
using mesh::Placements;

// Axis sets are enumerated as bit masks; meshes have few axes.
std::vector<int> axes_of(unsigned mask) {
  std::vector<int> axes;
  for (int a = 0; mask >> a; ++a) {
    if (mask >> a & 1) axes.push_back(a);
  }
  return axes;
}

// Shards of a dim nest, the last axis outermost. A set of axes may start or stop sharding a dim
// only if no other axis before its last one shards it.
bool innermost(const Placements& placements, unsigned mask, int dim) {
  bool below = true;
  for (int a = static_cast<int>(placements.size()) - 1; a >= 0; --a) {
    if (mask >> a & 1) below = false;
    if (!below && !(mask >> a & 1) && placements[a] == Placement::shard(dim)) return false;
  }
  return true;
}

bool combines_alone(const Placements& placements, unsigned mask, mesh::Reduce reduce) {
  for (size_t a = 0; a < placements.size(); ++a) {
    const auto& p = placements[a];
    if (!(mask >> a & 1) && p.is_partial() && p.reduce != reduce) return false;
  }
  return true;
}

// A view of a tensor in which no placement has runs or zigzags: dims cut in runs are two dims, dims
// cut zigzag are reordered.
struct RunView {
  graph::TensorType type;
  Placements from, to;
  std::vector<std::pair<int, int64_t>> zigzags, restored;  // dims of type, ranks
};

// Returns nothing if the two ends cut a dim in different runs or orders, in runs that do not divide
// it, or one cuts it inside runs.
std::optional<RunView> view_of_runs(const graph::TensorType& type, const Placements& from,
                                    const Placements& to, const mesh::Mesh& mesh) {
  std::vector<int64_t> runs(type.shape.size(), 0);
  for (const auto* end : {&from, &to}) {
    for (const auto& p : *end) {
      if (!p.is_shard() || p.run == 0) continue;
      if (runs[p.dim] != 0 && runs[p.dim] != p.run) return {};
      runs[p.dim] = p.run;
    }
  }
  RunView view{{type.dtype, {}}, from, to};
  std::vector<int> first;  // per dim: its position in the view
  for (size_t d = 0; d < runs.size(); ++d) {
    first.push_back(static_cast<int>(view.type.shape.size()));
    if (runs[d] == 0) {
      view.type.shape.push_back(type.shape[d]);
    } else {
      view.type.shape.insert(view.type.shape.end(), {type.shape[d] / runs[d], runs[d]});
    }
  }
  // Per end and dim of the view: the ranks of its zigzag, and whether it is cut.
  std::vector<int64_t> zigzag[2];
  std::vector<bool> cut[2];
  for (int side : {0, 1}) {
    zigzag[side].resize(view.type.shape.size());
    cut[side].resize(view.type.shape.size());
    auto* end = side == 0 ? &view.from : &view.to;
    std::vector<int64_t> between(runs.size(), 1);
    for (size_t a = 0; a < end->size(); ++a) {
      auto& p = (*end)[a];
      if (!p.is_shard()) continue;
      const bool in_run = runs[p.dim] != 0 && p.run != 0;
      if (!in_run) between[p.dim] *= mesh.axes[a].size;
      const int dim = first[p.dim] + (in_run ? 1 : 0);
      cut[side][dim] = true;
      if (p.zigzag) zigzag[side][dim] = mesh.axes[a].size;
      p = Placement::shard(dim);
    }
    for (size_t d = 0; d < runs.size(); ++d) {
      if (runs[d] != 0 && type.shape[d] % (runs[d] * between[d]) != 0) return {};
    }
  }
  for (int d = 0; d < static_cast<int>(view.type.shape.size()); ++d) {
    if (zigzag[0][d] == zigzag[1][d]) continue;
    const bool begins = !cut[0][d];
    if (!begins && cut[1][d]) return {};
    const auto ranks = zigzag[begins ? 1 : 0][d];
    if (view.type.shape[d] % (2 * ranks) != 0) return {};
    (begins ? view.zigzags : view.restored).emplace_back(d, ranks);
  }
  return view;
}

}  // namespace

Redistributor::Redistributor(const mesh::Mesh& mesh, std::string_view whole,
                             const std::vector<std::string>& forbidden)
    : mesh_(mesh), whole_(mesh.find(whole)) {
  for (const auto& name : forbidden) {
    gathers_ = gathers_ && name != "all_gather";
    exchanges_ = exchanges_ && name != "all_to_all";
  }
}

bool Redistributor::allows(RedistributeStep::Kind kind, const std::vector<int>& axes) const {
  if (kind == RedistributeStep::Kind::all_gather ? gathers_ : exchanges_) return true;
  return std::all_of(axes.begin(), axes.end(), [&](int a) { return mesh_.axes[a].size == 1; });
}

double Redistributor::group_size(const std::vector<int>& axes) const {
  double size = 1;
  for (int a : axes) size *= static_cast<double>(std::max<int64_t>(mesh_.axes[a].size, 2));
  return size;
}

const RedistributePath& Redistributor::path(const graph::TensorType& type, const Placements& from,
                                            const Placements& to) {
  std::string key;
  key.reserve(64);
  const auto put = [&](int64_t n) { key.append(reinterpret_cast<const char*>(&n), sizeof n); };
  put(static_cast<int64_t>(type.dtype));
  for (auto size : type.shape) put(size);
  for (const auto* placements : {&from, &to}) {
    for (const auto& p : *placements) {
      key += static_cast<char>(p.kind);
      key += static_cast<char>(p.dim);
      key += static_cast<char>(p.reduce);
      put(p.zigzag ? -1 - p.run : p.run);
    }
  }
  const auto found = paths_.find(key);
  if (found != paths_.end()) return found->second;
  return paths_.emplace(std::move(key), whole_path(type, from, to)).first->second;
}

RedistributePath Redistributor::whole_path(const graph::TensorType& type, const Placements& from,
                                           const Placements& to) const {
  if (from == to) return {};
  if (const auto view = view_of_runs(type, from, to, mesh_)) {
    auto path = search(view->type, view->from, view->to);
    const auto reorder = [&](RedistributeStep::Kind kind, int dim, int64_t ranks,
                             const Placements& placements) {
      path.cost += kLocal * bytes_of(type);
      RedistributeStep step{.kind = kind, .dim = dim, .after = placements, .before = placements};
      step.shape = view->type.shape;
      step.ranks = ranks;
      path.steps.insert(
          kind == RedistributeStep::Kind::zigzag ? path.steps.begin() : path.steps.end(), step);
    };
    for (const auto& [d, n] : view->zigzags)
      reorder(RedistributeStep::Kind::zigzag, d, n, view->from);
    for (const auto& [d, n] : view->restored)
      reorder(RedistributeStep::Kind::restore, d, n, view->to);
    return path;
  }
  // The runs of both ends do not nest, or their orders differ: gather the dims first.
  Placements whole = from;
  for (auto& p : whole) {
    if (p.is_shard()) p = Placement::replicate();
  }
  if (whole == from || whole == to) {
    fail(
        "shard",
        "a dim must be cut into equal runs that make it up, each evenly, zigzag into twice as many "
        "pieces as ranks, but [{}] goes from {} to {}",
        fmt::join(type.shape, ", "), mesh::to_string(from), mesh::to_string(to));
  }
  auto path = whole_path(type, from, whole);
  const auto rest = whole_path(type, whole, to);
  path.cost += rest.cost;
  path.steps.insert(path.steps.end(), rest.steps.begin(), rest.steps.end());
  return path;
}

namespace {

// Encodes placements as numbers with a digit for each axis, the first axis the highest.
class Coding {
 public:
  Coding(const Placements& from, const Placements& to, const std::set<int>& dims) {
    known_.push_back(Placement::replicate());
    for (int dim : dims) known_.push_back(Placement::shard(dim));
    for (const auto* end : {&from, &to}) {
      for (const auto& p : *end) {
        if (std::find(known_.begin(), known_.end(), p) == known_.end()) known_.push_back(p);
      }
    }
    std::ranges::sort(known_, {}, [](const Placement& p) { return mesh::to_string(p); });
    weights_.assign(from.size(), 1);
    for (size_t a = from.size(); a-- > 1;) weights_[a - 1] = weights_[a] * known_.size();
  }

  uint64_t of(const Placements& placements) const {
    uint64_t code = 0;
    for (size_t a = 0; a < placements.size(); ++a) code += digit(placements[a]) * weights_[a];
    return code;
  }
  void read(uint64_t code, Placements& placements) const {
    for (size_t a = 0; a < placements.size(); ++a) {
      placements[a] = known_[code / weights_[a] % known_.size()];
    }
  }
  // Returns `code` with the axes of the mask moved from one placement to another.
  uint64_t moved(uint64_t code, unsigned mask, const Placement& from, const Placement& to) const {
    uint64_t all = 0;
    for (size_t a = 0; a < weights_.size(); ++a) all += (mask >> a & 1) * weights_[a];
    return code + digit(to) * all - digit(from) * all;
  }

 private:
  uint64_t digit(const Placement& p) const {
    return std::find(known_.begin(), known_.end(), p) - known_.begin();
  }

  std::vector<Placement> known_;
  std::vector<uint64_t> weights_;  // per axis
};

// A step without its resulting placements.
struct Move {
  RedistributeStep::Kind kind = RedistributeStep::Kind::all_reduce;
  unsigned mask = 0;
  int dim = -1, from_dim = -1;
  mesh::Reduce reduce = mesh::Reduce::sum;
};

struct Reached {
  double cost = std::numeric_limits<double>::infinity();
  uint64_t before = 0;
  Move move;
  bool done = false;
};

}  // namespace

// Dijkstra over placements. Dims are those of the two ends only, so there are few states.
RedistributePath Redistributor::search(const graph::TensorType& type, const Placements& from,
                                       const Placements& to) const {
  std::set<int> dims;
  for (const auto* end : {&from, &to}) {
    for (const auto& p : *end) {
      if (p.is_shard()) dims.insert(p.dim);
    }
  }
  const Coding coding(from, to, dims);
  std::unordered_map<uint64_t, Reached> states;
  using Entry = std::pair<double, uint64_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto start = coding.of(from), goal = coding.of(to);
  states[start].cost = 0;
  queue.push({0, start});
  const auto bytes_at = [&](const Placements& placements) {
    double bytes = bytes_of(type);
    for (size_t a = 0; a < placements.size(); ++a) {
      if (placements[a].is_shard()) bytes /= group_size({static_cast<int>(a)});
    }
    return bytes;
  };
  const unsigned all = 1u << from.size();
  std::vector<std::vector<int>> axes_by(all);
  for (unsigned mask = 1; mask < all; ++mask) axes_by[mask] = axes_of(mask);
  Placements current(from.size());
  // Uneven shards over several axes are uneven shards of uneven shards. One collective over the
  // joint group would cut differently, so such a dim is changed axis by axis.
  const auto one_cut = [&](unsigned mask, int dim) {
    if (std::has_single_bit(mask)) return true;
    int64_t parts = 1;
    for (size_t a = 0; a < current.size(); ++a) {
      if ((mask >> a & 1) != 0 || current[a] == Placement::shard(dim)) parts *= mesh_.axes[a].size;
    }
    return type.shape[dim] % parts == 0;
  };
  while (!queue.empty()) {
    const auto [cost, code] = queue.top();
    queue.pop();
    auto& state = states[code];
    if (state.done) continue;
    state.done = true;
    if (code == goal) break;
    coding.read(code, current);
    const double bytes = bytes_at(current);
    for (unsigned mask = 1; mask < all; ++mask) {
      const auto& axes = axes_by[mask];
      const Placement p = current[axes[0]];
      if (!std::all_of(axes.begin(), axes.end(), [&](int a) { return current[a] == p; })) continue;
      const auto try_step = [&](const Move& move, const Placement& target, double step_cost) {
        const auto next = coding.moved(code, mask, p, target);
        auto& reached = states[next];
        if (cost + step_cost >= reached.cost) return;
        reached.cost = cost + step_cost;
        reached.before = code;
        reached.move = move;
        queue.push({reached.cost, next});
      };
      const double n = group_size(axes);
      const double moved = (n - 1) / n * bytes;
      if (p.is_partial()) {
        if (!combines_alone(current, mask, p.reduce)) continue;
        try_step({RedistributeStep::Kind::all_reduce, mask, -1, -1, p.reduce},
                 Placement::replicate(), kLatency + 2 * moved);
        for (int dim : dims) {
          if (!innermost(current, mask, dim) || !one_cut(mask, dim)) continue;
          try_step({RedistributeStep::Kind::reduce_scatter, mask, dim, -1, p.reduce},
                   Placement::shard(dim), kLatency + moved);
        }
      } else if (p.is_shard()) {
        if (!innermost(current, mask, p.dim) || !one_cut(mask, p.dim)) continue;
        if (allows(RedistributeStep::Kind::all_gather, axes)) {
          try_step({RedistributeStep::Kind::all_gather, mask, p.dim}, Placement::replicate(),
                   kLatency + (n - 1) * bytes);
        }
        for (int dim : dims) {
          if (dim == p.dim || !innermost(current, mask, dim) || !one_cut(mask, dim)) continue;
          if (!allows(RedistributeStep::Kind::all_to_all, axes)) continue;
          try_step({RedistributeStep::Kind::all_to_all, mask, dim, p.dim}, Placement::shard(dim),
                   kLatency + moved);
        }
      } else if (whole_ < 0 || (mask >> whole_ & 1) == 0) {
        for (int dim : dims) {
          if (!innermost(current, mask, dim)) continue;
          try_step({RedistributeStep::Kind::slice, mask, dim}, Placement::shard(dim),
                   kLocal * bytes / n);
        }
        for (int a : axes) {
          if (!to[a].is_partial() || !combines_alone(current, mask, to[a].reduce)) continue;
          try_step({RedistributeStep::Kind::part, mask, -1, -1, to[a].reduce},
                   Placement::partial(to[a].reduce), kLocal * bytes);
        }
      }
    }
  }
  const auto end = states.find(goal);
  if (end == states.end() || !end->second.done) {
    if (gathers_ && exchanges_) {
      fail("shard", "no collectives lead from {} to {}", mesh::to_string(from),
           mesh::to_string(to));
    }
    return {.steps = {}, .cost = std::numeric_limits<double>::infinity()};
  }
  RedistributePath path;
  path.cost = end->second.cost;
  for (auto at = goal; at != start; at = states[at].before) {
    const auto& move = states[at].move;
    RedistributeStep step{move.kind, axes_by[move.mask], move.dim, move.from_dim, move.reduce, from,
                          from};
    coding.read(at, step.after);
    coding.read(states[at].before, step.before);
    step.shape = type.shape;
    path.steps.push_back(std::move(step));
  }
  std::reverse(path.steps.begin(), path.steps.end());
  return path;
}

}  // namespace perigee::shard
