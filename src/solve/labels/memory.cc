#include "solve/labels/memory.h"

#include <cmath>
#include <utility>

#include "base/infinity.h"

namespace perigee::solve {
namespace {}  // namespace

LabelMemory::LabelMemory(const AssignModel& model, const Sweep& sweep, const ThresholdRange& range,
                         const std::vector<SweepStep>& steps, const LabelTarget& target)
    : model_(model),
      sweep_(sweep),
      range_(range),
      steps_(steps),
      target_(target),
      terms_(steps.size()) {
  if (!model_.limited) return;
  capacity_ = capacity_left(model_, range_);
  const auto known = added();
  choose_peaks(known);
  make_terms(known);
}

LabelMemory::Added LabelMemory::added() const {
  const size_t n = steps_.size();
  const int row_count = model_.groups + model_.moments;
  Added known;
  known.first.assign(row_count, -1);
  known.last.assign(row_count, -1);
  known.least.resize(row_count);
  known.most.resize(row_count);
  known.backward.resize(n);
  known.step.resize(n);
  known.rows.resize(n);
  for (size_t i = 0; i < n; ++i) {
    const auto& variable = model_.variables[steps_[i].variable];
    auto& rows = known.rows[i];
    rows.resize(variable.rows.size());
    for (const auto& use : variable.uses) {
      const int64_t over = excess(use, range_);
      known.backward[i].add(use.backward + over);
      known.step[i].add(use.step + over);
      known.step_below = known.step_below && use.step <= use.backward;
      known.backward_below = known.backward_below && use.backward <= use.step;
      for (size_t k = 0; k < rows.size(); ++k) rows[k].add(use.rows[k]);
    }
    for (size_t k = 0; k < rows.size(); ++k) {
      const int r = variable.rows[k];
      if (known.first[r] < 0) known.first[r] = static_cast<int>(i);
      known.last[r] = static_cast<int>(i);
      known.least[r] += rows[k].least;
      known.most[r] += rows[k].most;
    }
  }
  return known;
}

// Determines which of the two peaks and the largest group can bind.
void LabelMemory::choose_peaks(const Added& added) {
  int64_t most_backward = 0, most_step = 0;
  for (int g = 0; g < model_.groups; ++g) {
    most_group_ = std::max(most_group_, added.most[g]);
    least_group_ = std::max(least_group_, added.least[g]);
  }
  for (size_t i = 0; i < steps_.size(); ++i) {
    most_backward += added.backward[i].most;
    most_step += added.step[i].most;
  }
  backward_ = most_backward + most_group_ > capacity_ &&
              !(added.backward_below && !added.step_below);
  step_ = most_step + most_group_ > capacity_ && !added.step_below;
  // One peak alone is bounded well enough by its price.
  if ((backward_ && step_) || !added.most.empty()) {
    reach(backward_, &Use::backward, backward_reach_);
    reach(step_, &Use::step, step_reach_);
  }
  group_ = (backward_ || step_) && most_group_ > least_group_;
}

// Finds the rate that gives the tightest bound on a peak; the peak is no longer counted if this
// bound shows that it cannot bind.
void LabelMemory::reach(bool& counted, int64_t Use::*memory, Reach& reach) {
  if (!counted) return;
  const double unit = static_cast<double>(std::max<int64_t>(capacity_, 1)) /
                      std::max(std::abs(target_.time), 1.0);
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
    const double most = unit * share * (target_.charged() - tables[0][0]);
    if (most >= least) continue;
    least = most;
    reach.rate = unit * share;
    reach.tables = std::move(tables);
  }
  if (least + static_cast<double>(most_group_) < static_cast<double>(capacity_)) counted = false;
}

// Iterates from the last step to the first, since terms include the memory that later steps add.
void LabelMemory::make_terms(const Added& added) {
  const int row_count = model_.groups + model_.moments;
  std::vector<bool> counted(row_count);
  for (int r = 0; r < row_count; ++r) {
    // A group whose memory is at most that of another group in every choice does not matter.
    counted[r] = r < model_.groups ? group_ && added.most[r] > least_group_
                                   : added.most[r] > model_.capacity;
  }
  int64_t least_backward = 0, least_step = 0, most_backward = 0, most_step = 0;
  std::vector<int64_t> least_left(row_count), most_left(row_count);
  const int fixed = backward_ + step_ + group_;
  for (size_t i = steps_.size(); i-- > 0;) {
    auto& terms = terms_[i];
    terms.least_backward = least_backward;
    terms.most_backward = most_backward;
    terms.least_step = least_step;
    terms.most_step = most_step;
    const auto& variable = model_.variables[steps_[i].variable];
    int before = fixed, after = fixed;
    for (int r = 0; r < row_count; ++r) {
      if (!counted[r] || added.first[r] > static_cast<int>(i) ||
          added.last[r] < static_cast<int>(i))
        continue;
      Terms::Row row{.row = r};
      if (added.first[r] < static_cast<int>(i)) row.from = before++;
      if (added.last[r] > static_cast<int>(i)) row.to = after++;
      const auto found = std::find(variable.rows.begin(), variable.rows.end(), r);
      if (found != variable.rows.end()) row.use = static_cast<int>(found - variable.rows.begin());
      row.least = least_left[r];
      row.most = most_left[r];
      terms.rows.push_back(row);
    }
    terms.width = after;
    least_backward += added.backward[i].least;
    most_backward += added.backward[i].most;
    least_step += added.step[i].least;
    most_step += added.step[i].most;
    for (size_t k = 0; k < variable.rows.size(); ++k) {
      least_left[variable.rows[k]] += added.rows[i][k].least;
      most_left[variable.rows[k]] += added.rows[i][k].most;
    }
  }
}

std::vector<int64_t> LabelMemory::initial() const {
  std::vector<int64_t> terms(backward_ + step_ + group_);
  if (group_) terms.back() = least_group_;
  return terms;
}

bool LabelMemory::advance(size_t i, const Use& use, int64_t over, const Remaining& remaining,
                          const int64_t* before, std::vector<int64_t>& after) const {
  const auto& terms = terms_[i];
  int64_t group = least_group_, peak = 0, free = capacity_;
  int slot = 0, group_slot = backward_ + step_;
  const int64_t most_group = group_ ? most_group_ : least_group_;
  if (group_) {
    group = before[group_slot];
    for (const auto& row : terms.rows) {
      if (row.row >= model_.groups) break;
      const int64_t value = (row.from < 0 ? 0 : before[row.from]) +
                            (row.use < 0 ? 0 : use.rows[row.use]);
      // The memory counted for an open group is a lower bound on the largest group.
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
    // A term that can no longer bind gets a value that does not depend on the label.
    after[slot] = std::max(value,
                           free - most_group - std::min(terms.most_backward, remaining.backward));
    ++slot;
  }
  if (step_) {
    const int64_t value = before[slot] + use.step + over;
    peak = std::max(peak, value + terms.least_step);
    after[slot] = std::max(value, free - most_group - std::min(terms.most_step, remaining.step));
  }
  if ((backward_ || step_) && peak + group > free) return false;
  for (const auto& row : terms.rows) {
    if (row.row < model_.groups) continue;
    const int64_t value = (row.from < 0 ? 0 : before[row.from]) +
                          (row.use < 0 ? 0 : use.rows[row.use]);
    if (value + row.least > model_.capacity) return false;
    if (row.to >= 0) after[row.to] = std::max(value, model_.capacity - row.most);
  }
  return true;
}

}  // namespace perigee::solve
