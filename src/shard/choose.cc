#include "shard/choose.h"

#include <algorithm>
#include <limits>

#include "graph/ops.h"
#include "shard/work.h"

namespace perigee::shard {
namespace {

using mesh::Placement;
using mesh::Placements;
using mesh::Reduce;

// A way to run the node on one axis.
struct Option {
  enum class Kind : uint8_t { replicate, dim, linear, crossing };
  Kind kind = Kind::replicate;
  Cut cut;              // of Kind::dim
  int group = 0;        // of Kind::linear; of Kind::crossing: which
  bool zigzag = false;  // of Kind::crossing
  Reduce reduce = Reduce::sum;
  bool operator==(const Option&) const = default;
};

bool contains(const std::vector<int>& items, int item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

Reduce reduce_of(Role role) {
  return role == Role::max ? Reduce::max : role == Role::min ? Reduce::min : Reduce::sum;
}

class Chooser {
 public:
  Chooser(const Call& call, const Pattern& pattern, const Situation& situation,
          const mesh::Mesh& mesh, Redistributor& redistributor)
      : call_(call),
        pattern_(pattern),
        situation_(situation),
        mesh_(mesh),
        redistributor_(redistributor),
        axes_(static_cast<int>(mesh.axes.size())) {}

  Choice best() {
    std::vector<std::vector<Option>> options;
    for (int a = 0; a < axes_; ++a) options.push_back(options_on(a));
    limit(options);
    Choice best;
    best.cost = std::numeric_limits<double>::infinity();
    std::vector<size_t> at(axes_, 0);
    std::vector<Option> picked(axes_);
    while (true) {
      for (int a = 0; a < axes_; ++a) picked[a] = options[a][at[a]];
      if (auto choice = make(picked); choice && choice->cost < best.cost) best = std::move(*choice);
      int a = 0;
      while (a < axes_ && ++at[a] == options[a].size()) at[a++] = 0;
      if (a == axes_) return best;
    }
  }

 private:
  // Ways that some operand, as it lies, or a pinned result asks for.
  std::vector<Option> options_on(int axis) const {
    std::vector<Option> options;
    const auto add_cut = [&](std::optional<Cut> cut) {
      if (!cut || !may_shard(call_, pattern_, *cut, {axis}, mesh_)) return false;
      const Option option{.kind = Option::Kind::dim, .cut = *cut};
      if (std::find(options.begin(), options.end(), option) == options.end()) {
        options.push_back(option);
      }
      return true;
    };
    for (int i = 0; i < call_.operand_count(); ++i) {
      const auto& p = situation_.operands[i][axis];
      if (!p.is_shard() || add_cut(pattern_.cut_of(p, false, i))) continue;
      // It cannot stay so: any other dim of it may be cheaper than gathering.
      for (int dim : pattern_.operands[i]) {
        if (dim >= 0) add_cut(Cut{dim});
      }
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      const auto wanted = [&](const Placements* there) -> std::optional<Cut> {
        if (!there || !(*there)[axis].is_shard()) return {};
        return pattern_.cut_of((*there)[axis], true, r);
      };
      add_cut(wanted(situation_.pins[r]));
      // A gradient's shard that takes nothing from other ranks (rows of an embedding).
      const auto goal = wanted(situation_.goals[r]);
      if (goal && !in_operands(*goal)) add_cut(goal);
    }
    if ((situation_.share_over >> axis & 1) != 0) {
      for (const auto& dims : pattern_.operands) {
        for (int dim : dims) {
          if (dim >= 0) add_cut(Cut{dim});
        }
      }
    }
    for (size_t g = 0; g < pattern_.linear.size(); ++g) {
      for (int i : pattern_.linear[g]) {
        const auto& p = situation_.operands[i][axis];
        if (!p.is_partial() || (p.reduce != Reduce::sum && !pattern_.any_reduce)) continue;
        options.push_back(
            {.kind = Option::Kind::linear, .group = static_cast<int>(g), .reduce = p.reduce});
        break;
      }
    }
    for (size_t c = 0; c < pattern_.crossings.size(); ++c) {
      for (bool zigzag : {false, true}) {
        if (!asks_for(pattern_.crossings[c], axis, zigzag)) continue;
        options.push_back(
            {.kind = Option::Kind::crossing, .group = static_cast<int>(c), .zigzag = zigzag});
      }
    }
    options.push_back({});
    return options;
  }

  // Whether an operand lies so, or a result is pinned so.
  bool asks_for(const Crossing& crossing, int axis, bool zigzag) const {
    if (mesh_.axes[axis].size == 1 || (zigzag && !crossing.zigzag)) return false;
    const auto lies = [&](const Placement& p, int dim) {
      return dim >= 0 && p == Placement::shard(dim, 0, zigzag);
    };
    if (crossing.visits) {
      return std::all_of(crossing.moves.begin(), crossing.moves.end(), [&](const auto& moved) {
        return lies(situation_.operands[moved.tensor][axis], crossing.operands[moved.tensor]);
      });
    }
    for (int i = 0; i < call_.operand_count(); ++i) {
      if (lies(situation_.operands[i][axis], crossing.operands[i])) return true;
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      const auto* pin = situation_.pins[r];
      if (pin && lies((*pin)[axis], crossing.results[r])) return true;
    }
    return false;
  }

  bool in_operands(Cut cut) const {
    for (int i = 0; i < call_.operand_count(); ++i) {
      if (pattern_.placed(cut, false, i)) return true;
    }
    return false;
  }

  // Keeps the number of combinations small: on many axes only the best few ways of each.
  void limit(std::vector<std::vector<Option>>& options) const {
    constexpr double most = 2048;
    double product = 1;
    size_t longest = 1;
    for (const auto& list : options) {
      product *= static_cast<double>(list.size());
      longest = std::max(longest, list.size());
    }
    for (; product > most && longest > 2; --longest) {
      product = 1;
      for (int a = 0; a < axes_; ++a) {
        auto& list = options[a];
        if (list.size() == longest) {
          // The last, replicate, always stays.
          const auto cost = [&](const Option& option) {
            std::vector<Option> alone(axes_);
            alone[a] = option;
            const auto choice = make(alone);
            return choice ? choice->cost : std::numeric_limits<double>::infinity();
          };
          const auto worst =
              std::max_element(list.begin(), list.end() - 1,
                               [&](const Option& x, const Option& y) { return cost(x) < cost(y); });
          list.erase(worst);
        }
        product *= static_cast<double>(list.size());
      }
    }
  }

  std::optional<Choice> make(const std::vector<Option>& picked) const {
    Choice choice = replicated(call_, picked.size());
    for (int a = 0; a < axes_; ++a) {
      const auto& option = picked[a];
      if (option.kind == Option::Kind::linear) {
        for (int i : pattern_.linear[option.group]) {
          choice.operands[i][a] = Placement::partial(option.reduce);
        }
        for (auto& result : choice.results) result[a] = Placement::partial(option.reduce);
      }
      if (option.kind == Option::Kind::crossing) {
        place(choice, pattern_.crossings[option.group], option.zigzag, a);
      }
      if (option.kind != Option::Kind::dim) continue;
      std::vector<int> together;
      for (int b = 0; b < axes_; ++b) {
        if (picked[b] == option) together.push_back(b);
      }
      if (together[0] == a && together.size() > 1 &&
          !may_shard(call_, pattern_, option.cut, together, mesh_)) {
        return {};
      }
      shard::place(choice, pattern_, option.cut, a);
    }
    place_own(choice);
    for (const auto* tensors : {&choice.operands, &choice.results}) {
      for (const auto& placements : *tensors) {
        if (mixes_reductions(placements)) return {};
      }
    }
    if (!runs_divide(call_, choice, mesh_) || !fits_crossings(choice, picked)) return {};
    if (situation_.one_axis && splits_twice(choice)) return {};
    if (situation_.share_over != 0 && !shares(choice)) return {};
    choice.cost = cost_of(choice) + exchanged(choice, picked);
    return choice;
  }

  void place(Choice& choice, const Crossing& crossing, bool zigzag, int axis) const {
    const auto put = [&](std::vector<Placements>& tensors, const std::vector<int>& dims) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (dims[i] >= 0) tensors[i][axis] = Placement::shard(dims[i], 0, zigzag);
      }
    };
    put(choice.operands, crossing.operands);
    put(choice.results, crossing.results);
  }

  void place_own(Choice& choice) const {
    const auto put = [&](Placements& placements, const std::vector<int64_t>& shape) {
      for (int a = 0; a < axes_; ++a) {
        placements[a] = shape[a] > 1 ? Placement::shard(a) : Placement::replicate();
      }
    };
    for (int i : pattern_.own_operands) put(choice.operands[i], call_.shape(i));
    for (int r : pattern_.own_results) {
      if (call_.has_result(r)) put(choice.results[r], call_.result_shape(r));
    }
  }

  // What the ranks of a crossing hold of a dim is one piece, and of equal size: other axes that cut
  // it are outer ones, all together divide it, and nothing is cut in runs.
  bool fits_crossings(const Choice& choice, const std::vector<Option>& picked) const {
    for (int a = 0; a < axes_; ++a) {
      if (picked[a].kind != Option::Kind::crossing) continue;
      const bool zigzag = pattern_.crossings[picked[a].group].zigzag;
      const auto fits = [&](const Placements& placements, const std::vector<int64_t>& shape) {
        int64_t parts = picked[a].zigzag ? 2 : 1;
        for (int b = 0; b < axes_; ++b) {
          if (placements[b].run != 0 || (placements[b].zigzag && !zigzag)) return false;
          if (!placements[a].is_shard()) continue;
          if (!placements[b].is_shard() || placements[b].dim != placements[a].dim) continue;
          parts *= mesh_.axes[b].size;
          if (b < a && picked[b] != picked[a]) return false;
        }
        return !placements[a].is_shard() || shape[placements[a].dim] % parts == 0;
      };
      for (int i = 0; i < call_.operand_count(); ++i) {
        if (!fits(choice.operands[i], call_.shape(i))) return false;
      }
      for (int r = 0; r < call_.result_count(); ++r) {
        if (call_.has_result(r) && !fits(choice.results[r], call_.result_shape(r))) return false;
      }
    }
    return true;
  }

  // What the crossings' lowerings move.
  double exchanged(const Choice& choice, const std::vector<Option>& picked) const {
    double cost = 0;
    for (int a = 0; a < axes_; ++a) {
      if (picked[a].kind != Option::Kind::crossing) continue;
      const auto& crossing = pattern_.crossings[picked[a].group];
      if (crossing.visits) continue;
      for (const auto& [of_result, t] : crossing.moves) {
        const auto& from = of_result ? choice.results[t] : choice.operands[t];
        const auto& type = of_result ? call_.result_type(t) : call_.operand_type(t);
        // As much as an all-to-all into another dim would.
        auto to = from;
        to[a] = Placement::shard(static_cast<int>(type.shape.size()) - 1);
        cost += redistributor_.path(type, from, to).cost;
      }
    }
    return cost;
  }

  // Whether a tensor is split over several axes.
  bool splits_twice(const Choice& choice) const {
    const auto twice = [&](const Placements& placements) {
      int count = 0;
      for (int a = 0; a < axes_; ++a) count += placements[a].is_shard() && mesh_.axes[a].size > 1;
      return count > 1;
    };
    return std::ranges::any_of(choice.operands, twice) ||
           std::ranges::any_of(choice.results, twice);
  }

  // Whether one of the axes splits the work.
  bool shares(const Choice& choice) const {
    for (int a = 0; a < axes_; ++a) {
      if ((situation_.share_over >> a & 1) == 0) continue;
      const auto cut = [&](const Placements& placements) { return !placements[a].is_replicate(); };
      if (std::ranges::any_of(choice.operands, cut) || std::ranges::any_of(choice.results, cut)) {
        return true;
      }
    }
    return false;
  }

  // A product that several ranks compute whole takes longer than moving less saves.
  double cost_of(const Choice& choice) const {
    double cost = graph::is_product(call_.node().op)
                      ? WorkPrices().per_flop * arithmetic(call_, choice, mesh_)
                      : 0;
    for (int i = 0; i < call_.operand_count(); ++i) {
      // The same value wanted twice in one place is moved once.
      bool again = false;
      for (int j = 0; j < i; ++j) {
        again |= call_.operand(j) == call_.operand(i) && choice.operands[j] == choice.operands[i];
      }
      if (again) continue;
      const auto& type = call_.operand_type(i);
      double least = redistributor_.path(type, situation_.operands[i], choice.operands[i]).cost;
      for (const auto* version : situation_.versions[i]) {
        least = std::min(least, redistributor_.path(type, *version, choice.operands[i]).cost);
      }
      cost += least;
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      if (!call_.has_result(r)) continue;
      const auto& type = call_.result_type(r);
      double bytes = Redistributor::bytes_of(type);
      for (int a = 0; a < axes_; ++a) {
        if (choice.results[r][a].is_shard()) bytes /= redistributor_.group_size({a});
      }
      cost += Redistributor::kLocal * bytes;
      const auto* pin = situation_.pins[r];
      const Placements lying = pin ? resolved(*pin, choice.results[r]) : choice.results[r];
      if (pin) {
        if (mixes_reductions(lying) || !mesh::runs_divide(type.shape, lying, mesh_)) {
          return std::numeric_limits<double>::infinity();
        }
        // A tie moves operands, which other nodes may want there too.
        cost += 1.000001 * redistributor_.path(type, choice.results[r], lying).cost;
      }
      cost += reduction_later(r, type, lying);
    }
    return cost;
  }

  // What is still to be moved of a result that lies so.
  double reduction_later(int result, const graph::TensorType& type, const Placements& lying) const {
    Placements there = lying;
    double now = 0;
    if (const auto* goal = situation_.goals[result]) {
      // A gradient lies as its parameter; where that is whole it may stay Partial.
      for (size_t a = 0; a < there.size(); ++a) {
        if (!there[a].is_partial() || !(*goal)[a].is_replicate()) there[a] = (*goal)[a];
      }
      now = redistributor_.path(type, lying, there).cost;
    }
    Placements whole = there;
    for (size_t a = 0; a < whole.size(); ++a) {
      const bool waits = !situation_.goals[result] && (situation_.free_on[result] >> a & 1) != 0;
      if (whole[a].is_partial() && !waits) whole[a] = Placement::replicate();
    }
    if (whole == there) return now;
    // What is left to be reduced in buckets is not quite free.
    if (situation_.goals[result]) {
      return now + 0.01 * redistributor_.path(type, there, whole).cost;
    }
    // It is reduced behind this node or later; a little less than now, so that a tie keeps it
    // Partial.
    return (1 - 1e-6) * redistributor_.path(type, there, whole).cost;
  }

  const Call& call_;
  const Pattern& pattern_;
  const Situation& situation_;
  const mesh::Mesh& mesh_;
  Redistributor& redistributor_;
  const int axes_;
};

}  // namespace

Forbidden forbidden_by(const plan::Plan& plan) {
  const auto forbids = [&](const char* what) {
    return std::ranges::count(plan.forbidden, what) > 0;
  };
  Forbidden forbidden{.one_axis = forbids("nd_shardings")};
  if (!forbids("replicated_products")) return forbidden;
  const auto copies = mesh::split_axes(plan.copy_axes);
  for (size_t a = 0; a < plan.mesh.axes.size(); ++a) {
    const auto& axis = plan.mesh.axes[a];
    const bool splits =
        axis.name != plan.pipeline.axis && std::ranges::count(copies, axis.name) == 0;
    if (splits && axis.size > 1) forbidden.share_over |= uint64_t{1} << a;
  }
  return forbidden;
}

Placements resolved(const Placements& pin, const Placements& placements) {
  Placements lying = pin;
  for (size_t a = 0; a < lying.size(); ++a) {
    if (lying[a].is_open()) lying[a] = placements[a];
  }
  return lying;
}

void place(Choice& choice, const Pattern& pattern, Cut cut, int axis) {
  const Role role = pattern.dims[cut.dim].role;
  for (int i = 0; i < static_cast<int>(choice.operands.size()); ++i) {
    if (const auto p = pattern.placed(cut, false, i)) {
      choice.operands[i][axis] = *p;
    } else if (role == Role::sum && contains(pattern.addends, i)) {
      choice.operands[i][axis] = Placement::partial();
    }
  }
  for (int r = 0; r < static_cast<int>(choice.results.size()); ++r) {
    if (const auto p = pattern.placed(cut, true, r)) {
      choice.results[r][axis] = *p;
    } else if (role != Role::agreed) {
      choice.results[r][axis] = Placement::partial(reduce_of(role));
    }
  }
}

bool mixes_reductions(const Placements& placements) {
  const Placement* partial = nullptr;
  for (const auto& p : placements) {
    if (!p.is_partial()) continue;
    if (partial && partial->reduce != p.reduce) return true;
    partial = &p;
  }
  return false;
}

Choice replicated(const Call& call, size_t axes) {
  Choice choice;
  choice.operands.assign(call.operand_count(), Placements(axes));
  choice.results.assign(call.result_count(), Placements(axes));
  return choice;
}

bool runs_divide(const Call& call, const Choice& choice, const mesh::Mesh& mesh) {
  for (int i = 0; i < call.operand_count(); ++i) {
    if (!mesh::runs_divide(call.shape(i), choice.operands[i], mesh)) return false;
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (call.has_result(r) && !mesh::runs_divide(call.result_shape(r), choice.results[r], mesh)) {
      return false;
    }
  }
  return true;
}

bool may_shard(const Call& call, const Pattern& pattern, Cut cut, const std::vector<int>& axes,
               const mesh::Mesh& mesh) {
  int64_t parts = 1;
  for (int a : axes) parts *= mesh.axes[a].size;
  const auto divides = [&](const std::optional<Placement>& p, const std::vector<int64_t>& shape) {
    if (!p) return true;
    const int64_t chunks = p->zigzag ? 2 * parts : parts;
    if (p->run != 0) return p->run % chunks == 0 && shape[p->dim] % p->run == 0;
    if (p->zigzag) return shape[p->dim] % chunks == 0;
    return pattern.dims[cut.dim].even ? shape[p->dim] % parts == 0 : shape[p->dim] >= parts;
  };
  for (int i = 0; i < call.operand_count(); ++i) {
    if (!divides(pattern.placed(cut, false, i), call.shape(i))) return false;
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (!call.has_result(r)) continue;
    const auto placed = pattern.placed(cut, true, r);
    if (!divides(placed, call.result_shape(r))) return false;
    if (pattern.dims[cut.dim].role == Role::free && !placed) return false;
  }
  return true;
}

Choice choose(const Call& call, const Pattern& pattern, const Situation& situation,
              const mesh::Mesh& mesh, Redistributor& redistributor) {
  return Chooser(call, pattern, situation, mesh, redistributor).best();
}

}  // namespace perigee::shard
