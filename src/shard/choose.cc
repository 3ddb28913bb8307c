#include "shard/choose.h"

#include <algorithm>
#include <limits>

namespace perigee::shard {
namespace {

using mesh::Placement;
using mesh::Placements;
using mesh::Reduce;

// A way to run the node on one axis.
struct Option {
  enum class Kind : uint8_t { replicate, dim, linear };
  Kind kind = Kind::replicate;
  int index = 0;  // of Pattern::dims or Pattern::linear
  Reduce reduce = Reduce::sum;
  bool operator==(const Option&) const = default;
};

int position_of(const std::vector<int>& letters, int dim) {
  const auto found = std::find(letters.begin(), letters.end(), dim);
  return found == letters.end() ? -1 : static_cast<int>(found - letters.begin());
}

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
    const auto add_dim = [&](int dim) {
      const Option option{Option::Kind::dim, dim};
      if (dim < 0 || !may_shard(call_, pattern_, dim, {axis}, mesh_)) return false;
      if (std::find(options.begin(), options.end(), option) == options.end()) {
        options.push_back(option);
      }
      return true;
    };
    for (int i = 0; i < call_.operand_count(); ++i) {
      const auto& p = situation_.operands[i][axis];
      if (!p.is_shard() || add_dim(pattern_.operands[i][p.dim])) continue;
      // It cannot stay so: any other dim of it may be cheaper than gathering.
      for (int dim : pattern_.operands[i]) add_dim(dim);
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      const auto* pin = situation_.pins[r];
      if (pin && (*pin)[axis].is_shard()) add_dim(pattern_.results[r][(*pin)[axis].dim]);
    }
    for (size_t g = 0; g < pattern_.linear.size(); ++g) {
      for (int i : pattern_.linear[g]) {
        const auto& p = situation_.operands[i][axis];
        if (!p.is_partial() || (p.reduce != Reduce::sum && !pattern_.any_reduce)) continue;
        options.push_back({Option::Kind::linear, static_cast<int>(g), p.reduce});
        break;
      }
    }
    options.push_back({});
    return options;
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
        for (int i : pattern_.linear[option.index]) {
          choice.operands[i][a] = Placement::partial(option.reduce);
        }
        for (auto& result : choice.results) result[a] = Placement::partial(option.reduce);
      }
      if (option.kind != Option::Kind::dim) continue;
      std::vector<int> together;
      for (int b = 0; b < axes_; ++b) {
        if (picked[b] == option) together.push_back(b);
      }
      if (together[0] == a && together.size() > 1 &&
          !may_shard(call_, pattern_, option.index, together, mesh_)) {
        return {};
      }
      place_dim(choice, option.index, a);
    }
    for (const auto* tensors : {&choice.operands, &choice.results}) {
      for (const auto& placements : *tensors) {
        if (mixes_reductions(placements)) return {};
      }
    }
    choice.cost = cost_of(choice);
    return choice;
  }

  void place_dim(Choice& choice, int dim, int axis) const {
    const Role role = pattern_.dims[dim].role;
    for (int i = 0; i < call_.operand_count(); ++i) {
      const int at = position_of(pattern_.operands[i], dim);
      if (at >= 0) {
        choice.operands[i][axis] = Placement::shard(at);
      } else if (role == Role::sum && contains(pattern_.addends, i)) {
        choice.operands[i][axis] = Placement::partial();
      }
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      const int at = position_of(pattern_.results[r], dim);
      if (at >= 0) {
        choice.results[r][axis] = Placement::shard(at);
      } else if (role != Role::agreed) {
        choice.results[r][axis] = Placement::partial(reduce_of(role));
      }
    }
  }

  static bool mixes_reductions(const Placements& placements) {
    const Placement* partial = nullptr;
    for (const auto& p : placements) {
      if (!p.is_partial()) continue;
      if (partial && partial->reduce != p.reduce) return true;
      partial = &p;
    }
    return false;
  }

  double cost_of(const Choice& choice) const {
    double cost = 0;
    for (int i = 0; i < call_.operand_count(); ++i) {
      // The same value wanted twice in one place is moved once.
      bool again = false;
      for (int j = 0; j < i; ++j) {
        again |= call_.operand(j) == call_.operand(i) && choice.operands[j] == choice.operands[i];
      }
      if (again) continue;
      cost += redistributor_.path(call_.operand_type(i), situation_.operands[i], choice.operands[i])
                  .cost;
    }
    for (int r = 0; r < call_.result_count(); ++r) {
      if (!call_.has_result(r)) continue;
      const auto& type = call_.result_type(r);
      double bytes = static_cast<double>(type.bytes());
      Placements whole = choice.results[r];
      bool partial = false;
      for (int a = 0; a < axes_; ++a) {
        if (whole[a].is_shard()) bytes /= redistributor_.group_size({a});
        if (!whole[a].is_partial()) continue;
        whole[a] = Placement::replicate();
        partial = true;
      }
      cost += Redistributor::kLocal * bytes;
      if (const auto* pin = situation_.pins[r]) {
        cost += redistributor_.path(type, choice.results[r], *pin).cost;
      } else if (partial && !situation_.partial_is_free[r]) {
        // It is reduced behind this node or later; a little less than now, so that a tie keeps it
        // Partial.
        cost += 0.99 * redistributor_.path(type, choice.results[r], whole).cost;
      }
    }
    return cost;
  }

  const Call& call_;
  const Pattern& pattern_;
  const Situation& situation_;
  const mesh::Mesh& mesh_;
  Redistributor& redistributor_;
  const int axes_;
};

}  // namespace

Choice replicated(const Call& call, size_t axes) {
  Choice choice;
  choice.operands.assign(call.operand_count(), Placements(axes));
  choice.results.assign(call.result_count(), Placements(axes));
  return choice;
}

bool may_shard(const Call& call, const Pattern& pattern, int dim, const std::vector<int>& axes,
               const mesh::Mesh& mesh) {
  int64_t parts = 1;
  for (int a : axes) parts *= mesh.axes[a].size;
  const auto divides = [&](const std::vector<int>& letters, const std::vector<int64_t>& shape) {
    const int at = position_of(letters, dim);
    if (at < 0) return true;
    return pattern.dims[dim].even ? shape[at] % parts == 0 : shape[at] >= parts;
  };
  for (int i = 0; i < call.operand_count(); ++i) {
    if (!divides(pattern.operands[i], call.shape(i))) return false;
  }
  for (int r = 0; r < call.result_count(); ++r) {
    if (!call.has_result(r)) continue;
    if (!divides(pattern.results[r], call.result_shape(r))) return false;
    if (pattern.dims[dim].role == Role::free && position_of(pattern.results[r], dim) < 0) {
      return false;
    }
  }
  return true;
}

Choice choose(const Call& call, const Pattern& pattern, const Situation& situation,
              const mesh::Mesh& mesh, Redistributor& redistributor) {
  return Chooser(call, pattern, situation, mesh, redistributor).best();
}

}  // namespace perigee::shard
