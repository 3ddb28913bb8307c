#include "solve/labels/search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/infinity.h"
#include "solve/labels/front.h"
#include "solve/labels/memory.h"

namespace perigee::solve {
namespace {

constexpr size_t kAccepted = 64;  // choices offered at the end

// Labels between two steps, as parallel arrays.
struct Layer {
  std::vector<uint64_t> state;  // options of the frontier
  std::vector<double> charged;  // time with memory charged at the prices
  std::vector<int64_t> time;
  std::vector<int32_t> parent;   // in the layer before
  std::vector<uint16_t> option;  // of the variable just passed
  std::vector<int64_t> memory;   // `width` terms each
  size_t width = 0;
  size_t size() const { return state.size(); }
  void clear() {
    state.clear();
    charged.clear();
    time.clear();
    parent.clear();
    option.clear();
    memory.clear();
  }
  void append(const Layer& from, size_t i) {
    state.push_back(from.state[i]);
    charged.push_back(from.charged[i]);
    time.push_back(from.time[i]);
    parent.push_back(from.parent[i]);
    option.push_back(from.option[i]);
    memory.insert(memory.end(), from.memory.begin() + i * width,
                  from.memory.begin() + (i + 1) * width);
  }
};

class Search {
 public:
  Search(const AssignModel& model, const Sweep& sweep, const ThresholdRange& range, double constant,
         const LabelOptions& options)
      : model_(model),
        sweep_(sweep),
        range_(range),
        options_(options),
        target_{options.target, constant},
        steps_(make_steps(model, sweep.order(), std::vector<bool>(model.pairs.size(), true))),
        memory_(model, sweep, range_, steps_, target_) {
    link_pairs();
  }

  LabelOutcome run(const std::function<bool(std::span<const int>)>& accept);

 private:
  struct PairLink {
    int slot;  // in the full frontier
    int pair;
    bool forward;  // the step's variable is the pair's v
  };

  void link_pairs();
  void expand(size_t i, const Layer& from, Layer& to);
  void keep_best(size_t i, const Layer& all, Layer& kept);
  double bound_of(size_t i, const Layer& layer, size_t label) const {
    return layer.charged[label] + sweep_.rest(i + 1, table_state(i, layer.state[label]));
  }
  // Maps a full state after step i to the sweep's state; they are equal where the sweep left out
  // no pair.
  uint64_t table_state(size_t i, uint64_t state) const;

  const AssignModel& model_;
  const Sweep& sweep_;
  const ThresholdRange range_;
  const LabelOptions options_;
  const LabelTarget target_;
  const std::vector<SweepStep> steps_;
  const LabelMemory memory_;
  std::vector<std::vector<PairLink>> links_;
  std::vector<std::vector<std::pair<int32_t, uint16_t>>> history_;
  double dropped_ = kInfinity;
};

void Search::link_pairs() {
  std::vector<int> position(steps_.size());
  for (size_t i = 0; i < steps_.size(); ++i) position[steps_[i].variable] = static_cast<int>(i);
  links_.resize(steps_.size());
  for (size_t e = 0; e < model_.pairs.size(); ++e) {
    const auto& pair = model_.pairs[e];
    const bool forward = position[pair.u] < position[pair.v];
    const int late = forward ? pair.v : pair.u, early = forward ? pair.u : pair.v;
    const auto& frontier = steps_[position[late]].frontier;
    const auto slot = std::find(frontier.begin(), frontier.end(), early) - frontier.begin();
    links_[position[late]].push_back({static_cast<int>(slot), static_cast<int>(e), forward});
  }
}

uint64_t Search::table_state(size_t i, uint64_t state) const {
  if (sweep_.exact() || i + 1 == steps_.size()) return state;
  const auto& full = steps_[i + 1];
  const auto& table = sweep_.steps()[i + 1];
  uint64_t result = 0;
  for (size_t k = 0; k < full.frontier.size(); ++k) {
    const auto found = std::find(table.frontier.begin(), table.frontier.end(), full.frontier[k]);
    if (found == table.frontier.end()) continue;
    const uint64_t option = state / full.stride[k] % model_.variables[full.frontier[k]].size();
    result += option * table.stride[found - table.frontier.begin()];
  }
  return result;
}

void Search::expand(size_t i, const Layer& from, Layer& to) {
  const auto& step = steps_[i];
  const auto& variable = model_.variables[step.variable];
  const auto& unary = sweep_.unary()[step.variable];
  to.clear();
  to.width = memory_.width(i);
  std::vector<int64_t> after(to.width);
  std::vector<int64_t> over(variable.size());
  for (int j = 0; j < variable.size(); ++j) over[j] = excess(variable.uses[j], range_);
  std::vector<int> options(step.frontier.size());
  for (size_t begin = 0; begin < from.size();) {
    size_t end = begin;
    const uint64_t state = from.state[begin];
    while (end < from.size() && from.state[end] == state) ++end;
    uint64_t base = 0;
    for (size_t k = 0; k < options.size(); ++k) {
      options[k] = static_cast<int>(state / step.stride[k] %
                                    model_.variables[step.frontier[k]].size());
      base += options[k] * step.next_stride[k];
    }
    for (int j = 0; j < variable.size(); ++j) {
      int64_t time = variable.uses[j].time;
      double charge = unary[j];
      for (const auto& link : links_[i]) {
        const auto& pair = model_.pairs[link.pair];
        const size_t cell = link.forward
                                ? static_cast<size_t>(options[link.slot]) * variable.size() + j
                                : static_cast<size_t>(j) *
                                          model_.variables[step.frontier[link.slot]].size() +
                                      options[link.slot];
        time = std::min(kForbidden, time + pair.time[cell]);
        charge += sweep_.pair_time()[link.pair][cell];
      }
      if (time >= kForbidden) continue;
      const uint64_t next = base + j * step.own_stride;
      const uint64_t table = table_state(i, next);
      const double most = target_.charged() - sweep_.rest(i + 1, table) - charge;
      for (size_t label = begin; label < end; ++label) {
        if (from.charged[label] > most) break;  // ascending within a state
        const double charged = from.charged[label] + charge;
        if (!memory_.advance(i, variable.uses[j], over[j], memory_.remaining(i, table, charged),
                             from.memory.data() + label * from.width, after))
          continue;
        to.state.push_back(next);
        to.charged.push_back(charged);
        to.time.push_back(from.time[label] + time);
        to.parent.push_back(static_cast<int32_t>(label));
        to.option.push_back(static_cast<uint16_t>(j));
        to.memory.insert(to.memory.end(), after.begin(), after.end());
      }
    }
    begin = end;
  }
}

void Search::keep_best(size_t i, const Layer& all, Layer& kept) {
  struct Key {
    uint64_t state;
    int64_t time;
    double charged;
    uint32_t label;
  };
  std::vector<Key> order(all.size());
  for (size_t k = 0; k < order.size(); ++k)
    order[k] = {all.state[k], all.time[k], all.charged[k], static_cast<uint32_t>(k)};
  std::sort(order.begin(), order.end(), [](const Key& a, const Key& b) {
    if (a.state != b.state) return a.state < b.state;
    if (a.time != b.time) return a.time < b.time;
    return a.charged != b.charged ? a.charged < b.charged : a.label < b.label;
  });
  LabelFront front(all.width);
  std::vector<Key> alive;
  for (size_t k = 0; k < order.size(); ++k) {
    if (k == 0 || order[k].state != order[k - 1].state) front.clear();
    if (!front.dominated(all.memory.data() + order[k].label * all.width)) alive.push_back(order[k]);
  }
  if (alive.size() > options_.most_labels) {
    auto better = [&](const Key& a, const Key& b) {
      const double x = bound_of(i, all, a.label), y = bound_of(i, all, b.label);
      return x != y ? x < y : a.label < b.label;
    };
    std::nth_element(alive.begin(), alive.begin() + options_.most_labels, alive.end(), better);
    for (size_t k = options_.most_labels; k < alive.size(); ++k) {
      dropped_ = std::min(dropped_, bound_of(i, all, alive[k].label));
    }
    alive.resize(options_.most_labels);
  }
  std::sort(alive.begin(), alive.end(), [](const Key& a, const Key& b) {
    if (a.state != b.state) return a.state < b.state;
    return a.charged != b.charged ? a.charged < b.charged : a.label < b.label;
  });
  kept.clear();
  kept.width = all.width;
  for (const auto& key : alive) kept.append(all, key.label);
}

LabelOutcome Search::run(const std::function<bool(std::span<const int>)>& accept) {
  LabelOutcome outcome;
  if (std::any_of(steps_.begin(), steps_.end(),
                  [](const auto& step) { return step.states >= kManyStates; })) {
    outcome.dropped = -kInfinity;
    return outcome;
  }
  Layer layer, all;
  layer.state = {0};
  layer.charged = {0};
  layer.time = {0};
  layer.parent = {-1};
  layer.option = {0};
  layer.memory = memory_.initial();
  layer.width = layer.memory.size();
  for (size_t i = 0; i < steps_.size(); ++i) {
    expand(i, layer, all);
    keep_best(i, all, layer);
    auto& history = history_.emplace_back();
    history.reserve(layer.size());
    for (size_t k = 0; k < layer.size(); ++k)
      history.emplace_back(layer.parent[k], layer.option[k]);
    if (std::chrono::steady_clock::now() > options_.deadline) {
      outcome.timed_out = true;
      return outcome;
    }
  }
  outcome.dropped = dropped_ - target_.constant;
  std::vector<size_t> found(layer.size());
  std::iota(found.begin(), found.end(), size_t{0});
  std::stable_sort(found.begin(), found.end(),
                   [&](size_t a, size_t b) { return layer.time[a] < layer.time[b]; });
  std::vector<int> solution(steps_.size());
  for (size_t k = 0; k < std::min(found.size(), kAccepted); ++k) {
    size_t label = found[k];
    for (size_t i = steps_.size(); i-- > 0;) {
      const auto [parent, option] = history_[i][label];
      solution[steps_[i].variable] = option;
      label = parent;
    }
    if (accept(solution)) break;
    outcome.relaxed = std::min(outcome.relaxed, static_cast<double>(layer.time[found[0]]));
  }
  return outcome;
}

}  // namespace

LabelOutcome search_labels(const AssignModel& model, const Sweep& sweep,
                           const ThresholdRange& range, double constant,
                           const LabelOptions& options,
                           const std::function<bool(std::span<const int>)>& accept) {
  return Search(model, sweep, range, constant, options).run(accept);
}

}  // namespace perigee::solve
