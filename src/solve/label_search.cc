#include "solve/label_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace perigee::solve {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr uint64_t kManyStates = uint64_t{1} << 63;
constexpr size_t kAccepted = 64;  // choices offered at the end
constexpr size_t kCompared =
    2048;  // labels that one label is compared with, where no staircase does it

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

// How a step changes the memory terms. Terms: backward peak, step peak, largest closed group (each
// where it can bind), then the open rows in ascending order.
struct Terms {
  struct Row {
    int row = 0;
    int from = -1;                // slot before; -1: opens here
    int to = -1;                  // slot after; -1: closes here
    int use = -1;                 // index in Variable::rows; -1: the variable adds nothing
    int64_t least = 0, most = 0;  // what later steps add
  };
  std::vector<Row> rows;
  size_t width = 0;  // after the step
  int64_t least_backward = 0, most_backward = 0, least_step = 0,
          most_step = 0;  // what later steps add
};

class Search {
 public:
  Search(const Model& model, const Sweep& sweep, const ThresholdRange& range, double constant,
         const LabelOptions& options)
      : model_(model),
        sweep_(sweep),
        range_(range),
        options_(options),
        constant_(constant),
        target_(options.target + constant) {
    steps_ = make_steps(model, sweep.order(), std::vector<bool>(model.pairs.size(), true));
    make_terms();
    link_pairs();
  }

  LabelOutcome run(const std::function<bool(std::span<const int>)>& accept);

 private:
  struct PairLink {
    int slot;  // in the full frontier
    int pair;
    bool forward;  // the step's variable is the pair's v
  };

  // How much more of a peak's memory a label can still take on its way to a choice of interest:
  // what it has left of the target, less `tables` (time less memory / rate), times the rate.
  struct Reach {
    double rate = 0;  // memory per time; 0: not known
    Sweep::Tables tables;
  };

  void make_terms();
  void reach(bool& counted, int64_t Use::*memory, Reach& reach);
  int64_t most_to_come(const Reach& reach, size_t i, uint64_t state, double charged) const {
    if (reach.rate == 0) return std::numeric_limits<int64_t>::max() / 4;
    const double most = reach.rate * (target_ - charged - reach.tables[i + 1][state]);
    return static_cast<int64_t>(std::clamp(most + 1, 0.0, 0x1p60));
  }
  void link_pairs();
  void expand(size_t i, const Layer& from, Layer& to);
  // What a label may still add to the two peaks.
  struct ToCome {
    int64_t backward, step;
  };
  bool pass(const Terms& terms, const Use& use, int64_t over, const ToCome& to_come,
            const int64_t* before, std::vector<int64_t>& after) const;
  void keep_best(size_t i, const Layer& all, Layer& kept);
  double bound_of(size_t i, const Layer& layer, size_t label) const {
    return layer.charged[label] + sweep_.rest(i + 1, table_state(i, layer.state[label]));
  }
  // The sweep's state after step i for a full state after it: the same where no pair was left out.
  uint64_t table_state(size_t i, uint64_t state) const;

  const Model& model_;
  const Sweep& sweep_;
  const ThresholdRange range_;
  const LabelOptions options_;
  const double constant_, target_;
  std::vector<SweepStep> steps_;
  std::vector<std::vector<PairLink>> links_;
  std::vector<Terms> terms_;
  bool backward_ = false, step_ = false, group_ = false;
  Reach backward_reach_, step_reach_;
  int64_t capacity_ = 0;
  int64_t most_group_ = 0;   // no choice has a larger one
  int64_t least_group_ = 0;  // every choice has a group at least this large
  std::vector<std::vector<std::pair<int32_t, uint16_t>>> history_;
  double dropped_ = kInfinity;
};

void Search::make_terms() {
  const size_t n = steps_.size();
  terms_.resize(n);
  if (!model_.limited) return;
  capacity_ = capacity_left(model_, range_);
  const int row_count = model_.groups + model_.moments;
  std::vector<int> first(row_count, -1), last(row_count, -1);
  std::vector<int64_t> least(row_count), most(row_count);
  struct Span {
    int64_t least = std::numeric_limits<int64_t>::max(), most = 0;
    void add(int64_t value) { least = std::min(least, value), most = std::max(most, value); }
  };
  std::vector<Span> backward(n), step(n);
  std::vector<std::vector<Span>> rows(n);
  bool step_below = true, backward_below = true;
  for (size_t i = 0; i < n; ++i) {
    const auto& variable = model_.variables[steps_[i].variable];
    rows[i].resize(variable.rows.size());
    for (const auto& use : variable.uses) {
      const int64_t over = excess(use, range_);
      backward[i].add(use.backward + over);
      step[i].add(use.step + over);
      step_below = step_below && use.step <= use.backward;
      backward_below = backward_below && use.backward <= use.step;
      for (size_t k = 0; k < rows[i].size(); ++k) rows[i][k].add(use.rows[k]);
    }
    for (size_t k = 0; k < rows[i].size(); ++k) {
      const int r = variable.rows[k];
      if (first[r] < 0) first[r] = static_cast<int>(i);
      last[r] = static_cast<int>(i);
      least[r] += rows[i][k].least;
      most[r] += rows[i][k].most;
    }
  }
  int64_t most_backward = 0, most_step = 0;
  for (int g = 0; g < model_.groups; ++g) {
    most_group_ = std::max(most_group_, most[g]);
    least_group_ = std::max(least_group_, least[g]);
  }
  for (size_t i = 0; i < n; ++i) {
    most_backward += backward[i].most;
    most_step += step[i].most;
  }
  backward_ = most_backward + most_group_ > capacity_ && !(backward_below && !step_below);
  step_ = most_step + most_group_ > capacity_ && !step_below;
  // One peak alone is bounded well enough by its price.
  if ((backward_ && step_) || row_count > 0) {
    reach(backward_, &Use::backward, backward_reach_);
    reach(step_, &Use::step, step_reach_);
  }
  group_ = (backward_ || step_) && most_group_ > least_group_;
  std::vector<bool> counted(row_count);
  for (int r = 0; r < row_count; ++r) {
    // A group that cannot exceed what some group reaches anyway never decides.
    counted[r] = r < model_.groups ? group_ && most[r] > least_group_ : most[r] > model_.capacity;
  }

  int64_t least_backward = 0, least_step = 0;
  most_backward = most_step = 0;
  std::vector<int64_t> least_left(row_count), most_left(row_count);
  const int fixed = backward_ + step_ + group_;
  for (size_t i = n; i-- > 0;) {
    auto& terms = terms_[i];
    terms.least_backward = least_backward;
    terms.most_backward = most_backward;
    terms.least_step = least_step;
    terms.most_step = most_step;
    const auto& variable = model_.variables[steps_[i].variable];
    int before = fixed, after = fixed;
    for (int r = 0; r < row_count; ++r) {
      if (!counted[r] || first[r] > static_cast<int>(i) || last[r] < static_cast<int>(i)) continue;
      Terms::Row row{.row = r};
      if (first[r] < static_cast<int>(i)) row.from = before++;
      if (last[r] > static_cast<int>(i)) row.to = after++;
      const auto found = std::find(variable.rows.begin(), variable.rows.end(), r);
      if (found != variable.rows.end()) row.use = static_cast<int>(found - variable.rows.begin());
      row.least = least_left[r];
      row.most = most_left[r];
      terms.rows.push_back(row);
    }
    terms.width = after;
    least_backward += backward[i].least;
    most_backward += backward[i].most;
    least_step += step[i].least;
    most_step += step[i].most;
    for (size_t k = 0; k < variable.rows.size(); ++k) {
      least_left[variable.rows[k]] += rows[i][k].least;
      most_left[variable.rows[k]] += rows[i][k].most;
    }
  }
}

// Finds the rate that says most about a peak; the peak is no longer counted where even that shows
// it cannot bind.
void Search::reach(bool& counted, int64_t Use::*memory, Reach& reach) {
  if (!counted) return;
  const double unit = static_cast<double>(std::max<int64_t>(capacity_, 1)) /
                      std::max(std::abs(options_.target), 1.0);
  double least = kInfinity;
  for (const double share : {1.0, 4.0, 16.0, 64.0, 256.0}) {
    auto times = sweep_.unary();
    for (size_t v = 0; v < times.size(); ++v) {
      for (size_t j = 0; j < times[v].size(); ++j) {
        const auto& use = model_.variables[v].uses[j];
        times[v][j] -= static_cast<double>(use.*memory + excess(use, range_)) / (unit * share);
      }
    }
    auto tables = sweep_.tables(times);
    const double most = unit * share * (target_ - tables[0][0]);
    if (most >= least) continue;
    least = most;
    reach.rate = unit * share;
    reach.tables = std::move(tables);
  }
  if (least + static_cast<double>(most_group_) < static_cast<double>(capacity_)) counted = false;
}

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

// Computes the terms after a use. Returns whether the limits can still be met.
bool Search::pass(const Terms& terms, const Use& use, int64_t over, const ToCome& to_come,
                  const int64_t* before, std::vector<int64_t>& after) const {
  int64_t group = least_group_, peak = 0, free = capacity_;
  int slot = 0, group_slot = backward_ + step_;
  const int64_t most_group = group_ ? most_group_ : least_group_;
  if (group_) {
    group = before[group_slot];
    for (const auto& row : terms.rows) {
      if (row.row >= model_.groups) break;
      const int64_t value =
          (row.from < 0 ? 0 : before[row.from]) + (row.use < 0 ? 0 : use.rows[row.use]);
      // What is certain of an open group is a lower bound on the largest.
      group = std::max(group, value + row.least);
      if (row.to >= 0) after[row.to] = value;
    }
    for (const auto& row : terms.rows) {
      if (row.row >= model_.groups) break;
      if (row.to >= 0) after[row.to] = std::max(after[row.to], group - row.most);
    }
    after[group_slot] = group;
  }
  if (backward_) {
    const int64_t value = before[slot] + use.backward + over;
    peak = value + terms.least_backward;
    // What can no longer bind is all the same.
    after[slot] =
        std::max(value, free - most_group - std::min(terms.most_backward, to_come.backward));
    ++slot;
  }
  if (step_) {
    const int64_t value = before[slot] + use.step + over;
    peak = std::max(peak, value + terms.least_step);
    after[slot] = std::max(value, free - most_group - std::min(terms.most_step, to_come.step));
  }
  if ((backward_ || step_) && peak + group > free) return false;
  for (const auto& row : terms.rows) {
    if (row.row < model_.groups) continue;
    const int64_t value =
        (row.from < 0 ? 0 : before[row.from]) + (row.use < 0 ? 0 : use.rows[row.use]);
    if (value + row.least > model_.capacity) return false;
    if (row.to >= 0) after[row.to] = std::max(value, model_.capacity - row.most);
  }
  return true;
}

void Search::expand(size_t i, const Layer& from, Layer& to) {
  const auto& step = steps_[i];
  const auto& variable = model_.variables[step.variable];
  const auto& unary = sweep_.unary()[step.variable];
  const auto& terms = terms_[i];
  to.clear();
  to.width = terms.width;
  std::vector<int64_t> after(terms.width);
  std::vector<int64_t> over(variable.size());
  for (int j = 0; j < variable.size(); ++j) over[j] = excess(variable.uses[j], range_);
  std::vector<int> options(step.frontier.size());
  for (size_t begin = 0; begin < from.size();) {
    size_t end = begin;
    const uint64_t state = from.state[begin];
    while (end < from.size() && from.state[end] == state) ++end;
    uint64_t base = 0;
    for (size_t k = 0; k < options.size(); ++k) {
      options[k] =
          static_cast<int>(state / step.stride[k] % model_.variables[step.frontier[k]].size());
      base += options[k] * step.next_stride[k];
    }
    for (int j = 0; j < variable.size(); ++j) {
      int64_t time = variable.uses[j].time;
      double charge = unary[j];
      for (const auto& link : links_[i]) {
        const auto& pair = model_.pairs[link.pair];
        const size_t cell =
            link.forward
                ? static_cast<size_t>(options[link.slot]) * variable.size() + j
                : static_cast<size_t>(j) * model_.variables[step.frontier[link.slot]].size() +
                      options[link.slot];
        time = std::min(kForbidden, time + pair.time[cell]);
        charge += sweep_.pair_time()[link.pair][cell];
      }
      if (time >= kForbidden) continue;
      const uint64_t next = base + j * step.own_stride;
      const uint64_t table = table_state(i, next);
      const double most = target_ - sweep_.rest(i + 1, table) - charge;
      for (size_t label = begin; label < end; ++label) {
        if (from.charged[label] > most) break;  // ascending within a state
        const double charged = from.charged[label] + charge;
        const ToCome to_come{most_to_come(backward_reach_, i, table, charged),
                             most_to_come(step_reach_, i, table, charged)};
        if (!pass(terms, variable.uses[j], over[j], to_come,
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

// The labels kept so far for one state, in ascending time: answers whether one of them uses no more
// of any term.
class Front {
 public:
  explicit Front(size_t width) : width_(width) {}
  void clear() {
    least_ = std::numeric_limits<int64_t>::max();
    stairs_.clear();
    labels_.clear();
    empty_ = true;
  }
  // Returns whether the label is dominated; keeps it where it is not.
  bool dominated(const int64_t* memory) {
    if (width_ == 0) return !std::exchange(empty_, false);
    if (width_ == 1) {
      if (memory[0] >= least_) return true;
      least_ = memory[0];
      return false;
    }
    return width_ == 2 ? on_stairs(memory) : among_labels(memory);
  }

 private:
  // Ascending in the first term, descending in the second.
  bool on_stairs(const int64_t* memory) {
    const std::pair<int64_t, int64_t> point(memory[0], memory[1]);
    auto above = std::upper_bound(stairs_.begin(), stairs_.end(), point.first,
                                  [](int64_t x, const auto& stair) { return x < stair.first; });
    if (above != stairs_.begin() && std::prev(above)->second <= point.second) return true;
    auto begin = above;
    if (begin != stairs_.begin() && std::prev(begin)->first == point.first) --begin;
    auto end = begin;
    while (end != stairs_.end() && end->second >= point.second) ++end;
    if (begin == end) {
      stairs_.insert(begin, point);
    } else {
      *begin = point;
      stairs_.erase(begin + 1, end);
    }
    return false;
  }
  bool among_labels(const int64_t* memory) {
    const size_t count = labels_.size() / width_;
    for (size_t i = 0; i < count; ++i) {
      const int64_t* other = &labels_[i * width_];
      size_t k = 0;
      while (k < width_ && other[k] <= memory[k]) ++k;
      if (k < width_) continue;
      // One that dominates once is likely to again.
      if (i > 0)
        std::swap_ranges(labels_.begin() + i * width_, labels_.begin() + (i + 1) * width_,
                         labels_.begin() + i / 2 * width_);
      return true;
    }
    if (count < kCompared) labels_.insert(labels_.end(), memory, memory + width_);
    return false;
  }

  size_t width_;
  bool empty_ = true;
  int64_t least_ = std::numeric_limits<int64_t>::max();
  std::vector<std::pair<int64_t, int64_t>> stairs_;
  std::vector<int64_t> labels_;
};

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
  Front front(all.width);
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
  layer.width = backward_ + step_ + group_;
  layer.memory.assign(layer.width, 0);
  if (group_) layer.memory.back() = least_group_;
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
  outcome.dropped = dropped_ - constant_;
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

LabelOutcome search_labels(const Model& model, const Sweep& sweep, const ThresholdRange& range,
                           double constant, const LabelOptions& options,
                           const std::function<bool(std::span<const int>)>& accept) {
  return Search(model, sweep, range, constant, options).run(accept);
}

}  // namespace perigee::solve
