#include "shard/propagate/node_sharding.h"

#include <algorithm>
#include <limits>

#include "graph/ops.h"
#include "shard/propagate/work_cost.h"

namespace perigee::shard {
namespace {

using mesh::Placement;
using mesh::Placements;
using mesh::Reduce;

// An option on one axis.
struct Option {
  enum class Kind : uint8_t { replicate, dim, linear, communicating };
  Kind kind = Kind::replicate;
  DimCut cut;           // of Kind::dim
  int group = 0;        // of Kind::linear and Kind::communicating: index in the pattern
  bool zigzag = false;  // of Kind::communicating
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
  Chooser(const Call& call, const Pattern& pattern, const NodeContext& context,
          const mesh::Mesh& mesh, Redistributor& redistributor)
      : call_(call),
        pattern_(pattern),
        context_(context),
        mesh_(mesh),
        redistributor_(redistributor),
        axes_(static_cast<int>(mesh.axes.size())) {}

  NodeSharding best() {
    std::vector<std::vector<Option>> options;
    for (int a = 0; a < axes_; ++a) options.push_back(options_on(a));
    limit(options);
    NodeSharding best;
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
  // Adds the options that match the present placements of an operand, or the pin of a result.
  std::vector<Option> options_on(int axis) const {
    std::vector<Option> options;
    const auto add_cut = [&](std::optional<DimCut> cut) {
      if (!cut || !may_shard(call_, pattern_, *cut, {axis}, mesh_)) return false;
      const Option option{.kind = Option::Kind::dim, .cut = *cut};
      if (std::find(options.begin(), options.end(), option) == options.end()) {
        options.push_back(option);
      }
      return true;
    };
    for (int i = 0; i < call_.operand_count(); ++i) {
      const auto& p = context_.operands[i][axis];
      if (!p.is_shard() || add_cut(pattern_.cut_of(p, false, i))) continue;
      // The op does not shard this dim: sharding another dim may be cheaper than gathering
      // this one.
      for (int dim : pattern_.operands[i]) {
        if (dim >= 0) add_cut(DimCut{dim});
      }
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      const auto wanted = [&](const Placements* target) -> std::optional<DimCut> {
        if (!target || !(*target)[axis].is_shard()) return {};
        return pattern_.cut_of((*target)[axis], true, r);
      };
      add_cut(wanted(context_.pins[r]));
      // A gradient's shard that needs nothing from other ranks (rows of an embedding).
      const auto target_cut = wanted(context_.targets[r]);
      if (target_cut && !in_operands(*target_cut)) add_cut(target_cut);
    }
    if ((context_.share_over >> axis & 1) != 0) {
      for (const auto& dims : pattern_.operands) {
        for (int dim : dims) {
          if (dim >= 0) add_cut(DimCut{dim});
        }
      }
    }
    for (size_t g = 0; g < pattern_.linear.size(); ++g) {
      for (int i : pattern_.linear[g]) {
        const auto& p = context_.operands[i][axis];
        if (!p.is_partial() || (p.reduce != Reduce::sum && !pattern_.any_reduce)) continue;
        options.push_back(
            {.kind = Option::Kind::linear, .group = static_cast<int>(g), .reduce = p.reduce});
        break;
      }
    }
    for (size_t c = 0; c < pattern_.communicating.size(); ++c) {
      for (bool zigzag : {false, true}) {
        if (!is_suggested(pattern_.communicating[c], axis, zigzag)) continue;
        options.push_back(
            {.kind = Option::Kind::communicating, .group = static_cast<int>(c), .zigzag = zigzag});
      }
    }
    options.push_back({});
    return options;
  }

  // Whether an operand has these placements, or a result's pin does.
  bool is_suggested(const CommunicatingRule& rule, int axis, bool zigzag) const {
    if (mesh_.axes[axis].size == 1 || (zigzag && !rule.zigzag)) return false;
    const auto matches = [&](const Placement& p, int dim) {
      return dim >= 0 && p == Placement::shard(dim, 0, zigzag);
    };
    if (rule.visits) {
      return std::all_of(rule.moves.begin(), rule.moves.end(), [&](const auto& moved) {
        return matches(context_.operands[moved.tensor][axis], rule.operands[moved.tensor]);
      });
    }
    for (int i = 0; i < call_.operand_count(); ++i) {
      if (matches(context_.operands[i][axis], rule.operands[i])) return true;
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      const auto* pin = context_.pins[r];
      if (pin && matches((*pin)[axis], rule.results[r])) return true;
    }
    return false;
  }

  bool in_operands(DimCut cut) const {
    for (int i = 0; i < call_.operand_count(); ++i) {
      if (pattern_.placed(cut, false, i)) return true;
    }
    return false;
  }

  // Limits the number of combinations: on many axes only the cheapest few options of each stay.
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
          // The last option, replicate, always stays.
          const auto cost = [&](const Option& option) {
            std::vector<Option> alone(axes_);
            alone[a] = option;
            const auto choice = make(alone);
            return choice ? choice->cost : std::numeric_limits<double>::infinity();
          };
          const auto worst = std::max_element(
              list.begin(), list.end() - 1,
              [&](const Option& x, const Option& y) { return cost(x) < cost(y); });
          list.erase(worst);
        }
        product *= static_cast<double>(list.size());
      }
    }
  }

  std::optional<NodeSharding> make(const std::vector<Option>& picked) const {
    NodeSharding choice = replicated_sharding(call_, picked.size());
    for (int a = 0; a < axes_; ++a) {
      const auto& option = picked[a];
      if (option.kind == Option::Kind::linear) {
        for (int i : pattern_.linear[option.group]) {
          choice.operands[i][a] = Placement::partial(option.reduce);
        }
        for (auto& result : choice.results) result[a] = Placement::partial(option.reduce);
      }
      if (option.kind == Option::Kind::communicating) {
        place(choice, pattern_.communicating[option.group], option.zigzag, a);
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
      apply_cut(choice, pattern_, option.cut, a);
    }
    place_own(choice);
    for (int i : pattern_.in_place) {
      if (choice.operands[i] != context_.operands[i]) return {};
    }
    for (const auto* tensors : {&choice.operands, &choice.results}) {
      for (const auto& placements : *tensors) {
        if (mixes_reductions(placements)) return {};
      }
    }
    if (!runs_divide(call_, choice, mesh_) || !fits_communicating(choice, picked)) return {};
    if (context_.one_axis && splits_over_several_axes(choice)) return {};
    if (context_.share_over != 0 && !splits_work(choice)) return {};
    choice.cost = cost_of(choice) + exchange_cost(choice, picked);
    return choice;
  }

  void place(NodeSharding& choice, const CommunicatingRule& rule, bool zigzag, int axis) const {
    const auto put = [&](std::vector<Placements>& tensors, const std::vector<int>& dims) {
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (dims[i] >= 0) tensors[i][axis] = Placement::shard(dims[i], 0, zigzag);
      }
    };
    put(choice.operands, rule.operands);
    put(choice.results, rule.results);
  }

  void place_own(NodeSharding& choice) const {
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

  // Whether each rank of a communicating rule holds one equal piece of its dims: other axes that
  // cut a dim are outer ones, all together divide it, and nothing is cut in runs.
  bool fits_communicating(const NodeSharding& choice, const std::vector<Option>& picked) const {
    for (int a = 0; a < axes_; ++a) {
      if (picked[a].kind != Option::Kind::communicating) continue;
      const bool zigzag = pattern_.communicating[picked[a].group].zigzag;
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

  // The cost of the exchanges that the lowerings of communicating rules emit.
  double exchange_cost(const NodeSharding& choice, const std::vector<Option>& picked) const {
    double cost = 0;
    for (int a = 0; a < axes_; ++a) {
      if (picked[a].kind != Option::Kind::communicating) continue;
      const auto& communicating = pattern_.communicating[picked[a].group];
      if (communicating.visits) continue;
      for (const auto& [of_result, t] : communicating.moves) {
        const auto& from = of_result ? choice.results[t] : choice.operands[t];
        const auto& type = of_result ? call_.result_type(t) : call_.operand_type(t);
        // The exchange costs as much as an all-to-all into another dim.
        auto to = from;
        to[a] = Placement::shard(static_cast<int>(type.shape.size()) - 1);
        cost += redistributor_.path(type, from, to).cost;
      }
    }
    return cost;
  }

  // Whether a tensor is split over several axes.
  bool splits_over_several_axes(const NodeSharding& choice) const {
    const auto twice = [&](const Placements& placements) {
      int count = 0;
      for (int a = 0; a < axes_; ++a) count += placements[a].is_shard() && mesh_.axes[a].size > 1;
      return count > 1;
    };
    return std::ranges::any_of(choice.operands, twice) ||
           std::ranges::any_of(choice.results, twice);
  }

  // Whether one of the axes splits the work.
  bool splits_work(const NodeSharding& choice) const {
    for (int a = 0; a < axes_; ++a) {
      if ((context_.share_over >> a & 1) == 0) continue;
      const auto cut = [&](const Placements& placements) { return !placements[a].is_replicate(); };
      if (std::ranges::any_of(choice.operands, cut) || std::ranges::any_of(choice.results, cut)) {
        return true;
      }
    }
    return false;
  }

  // The cost of redistributes and of a product's arithmetic: without the latter ranks would compute
  // whole products only to move fewer bytes.
  double cost_of(const NodeSharding& choice) const {
    double cost = graph::is_product(call_.node().op)
                      ? WorkPrices().per_flop * rank_flops(call_, choice, mesh_)
                      : 0;
    for (int i = 0; i < call_.operand_count(); ++i) {
      // A value that two operands need with the same placements is moved once.
      bool moved_already = false;
      for (int j = 0; j < i; ++j) {
        moved_already |= call_.operand(j) == call_.operand(i) &&
                         choice.operands[j] == choice.operands[i];
      }
      if (moved_already) continue;
      const auto& type = call_.operand_type(i);
      double least = redistributor_.path(type, context_.operands[i], choice.operands[i]).cost;
      for (const auto* version : context_.versions[i]) {
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
      const auto* pin = context_.pins[r];
      const Placements placed = pin ? resolve_pin(*pin, choice.results[r]) : choice.results[r];
      if (pin) {
        if (mixes_reductions(placed) || !mesh::runs_divide(type.shape, placed, mesh_)) {
          return std::numeric_limits<double>::infinity();
        }
        // Ties prefer moving operands, which other nodes may need there too.
        cost += 1.000001 * redistributor_.path(type, choice.results[r], placed).cost;
      }
      cost += reduction_later(r, type, placed);
    }
    return cost;
  }

  // The cost of moving a result later: to its gradient's target, and reducing it.
  double reduction_later(int result, const graph::TensorType& type,
                         const Placements& placed) const {
    Placements target = placed;
    double now = 0;
    if (const auto* parameter = context_.targets[result]) {
      // A gradient takes its parameter's placements; where that is replicated it may stay Partial.
      for (size_t a = 0; a < target.size(); ++a) {
        if (!target[a].is_partial() || !(*parameter)[a].is_replicate()) target[a] = (*parameter)[a];
      }
      now = redistributor_.path(type, placed, target).cost;
    }
    Placements whole = target;
    for (size_t a = 0; a < whole.size(); ++a) {
      const bool waits = !context_.targets[result] && (context_.free_on[result] >> a & 1) != 0;
      if (whole[a].is_partial() && !waits) whole[a] = Placement::replicate();
    }
    if (whole == target) return now;
    // Buckets reduce it once a step, which costs little.
    if (context_.targets[result]) {
      return now + 0.01 * redistributor_.path(type, target, whole).cost;
    }
    // It is reduced after this node or later. The discount makes ties keep it Partial.
    return (1 - 1e-6) * redistributor_.path(type, target, whole).cost;
  }

  const Call& call_;
  const Pattern& pattern_;
  const NodeContext& context_;
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
  const auto copies = plan.copy_axes;
  for (size_t a = 0; a < plan.mesh.axes.size(); ++a) {
    const auto& axis = plan.mesh.axes[a];
    const bool splits = axis.name != plan.pipeline.axis &&
                        std::ranges::count(copies, axis.name) == 0;
    if (splits && axis.size > 1) forbidden.share_over |= uint64_t{1} << a;
  }
  return forbidden;
}

Placements resolve_pin(const Placements& pin, const Placements& placements) {
  Placements placed = pin;
  for (size_t a = 0; a < placed.size(); ++a) {
    if (placed[a].is_open()) placed[a] = placements[a];
  }
  return placed;
}

void apply_cut(NodeSharding& choice, const Pattern& pattern, DimCut cut, int axis) {
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

NodeSharding replicated_sharding(const Call& call, size_t axes) {
  NodeSharding choice;
  choice.operands.assign(call.operand_count(), Placements(axes));
  choice.results.assign(call.result_count(), Placements(axes));
  return choice;
}

bool runs_divide(const Call& call, const NodeSharding& choice, const mesh::Mesh& mesh) {
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

bool may_shard(const Call& call, const Pattern& pattern, DimCut cut, const std::vector<int>& axes,
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

NodeSharding cheapest_sharding(const Call& call, const Pattern& pattern, const NodeContext& context,
                               const mesh::Mesh& mesh, Redistributor& redistributor) {
  return Chooser(call, pattern, context, mesh, redistributor).best();
}

}  // namespace perigee::shard
