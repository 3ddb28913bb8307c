#include "schedule/search/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/fail.h"
#include "schedule/search/blocks.h"
#include "schedule/search/greedy.h"
#include "schedule/search/weights.h"

namespace perigee::schedule {
namespace {

// Passes over all ops that one call takes, measured.
constexpr long kGreedy = 3, kPlace = 1, kFill = 6;

constexpr double kForever = std::numeric_limits<double>::infinity();

class Search {
 public:
  Search(const Shape& shape, int cap) : shape_(shape), cap_(cap) {
    ops_ = 3L * shape.parts() * shape.microbatches;
    budget_ = std::max(180'000L, 24 * ops_);
    epsilon_ = 1e-9 * (shape.busy() + shape.transfer * shape.parts());
    bound_ = lower_bound();
    most_candidates_ = budget_ / (2 * kFill * ops_) + 1;
  }

  Orders run() {
    // A pass without a policy first: it finishes for every cap.
    consider(run_greedy(shape_, cap_, {}));
    papers();
    // Published orders gain most from moving ops up; small pipelines have the budget for it.
    if (budget_ > 100 * ops_) {
      polish();
      refine();
      candidates_.clear();
    }
    const long polish_share = budget_ / (budget_ > 40 * ops_ ? 2 : 3);
    for (const Policy& policy : policies()) {
      for (const Shape& costs : cost_models()) {
        if (budget_ < polish_share || optimal()) break;
        budget_ -= kGreedy * ops_;
        consider(run_greedy(costs, cap_, policy));
      }
    }
    polish();
    refine();
    return std::move(best_->orders);
  }

 private:
  bool optimal() const {
    return best_ && best_->line.longest_span <= bound_.longest_span + epsilon_ &&
           best_->line.makespan <= bound_.makespan + epsilon_;
  }

  bool better(const TimeLine& a, const TimeLine& b) const {
    if (a.longest_span < b.longest_span - epsilon_) return true;
    return a.longest_span <= b.longest_span + epsilon_ && a.makespan < b.makespan - epsilon_;
  }

  double idle(const Placed& placed) const { return placed.line.longest_span - shape_.busy(); }

  // Keeps `placed` if it is the best so far. Returns whether it is.
  bool keep(Placed placed) {
    if (best_ && !better(placed.line, best_->line)) return false;
    best_ = std::move(placed);
    return true;
  }

  // Completes a skeleton in two ways: weight gradients in every gap, or only where they delay
  // nothing. Keeps the best candidates, ordered, for polish().
  void consider(const Orders& skeleton) {
    if (optimal()) return;
    std::optional<Placed> first;
    for (const double patience : {0.0, kForever}) {
      budget_ -= kPlace * ops_;
      auto placed = place_weights(shape_, cap_, patience, skeleton);
      if (!placed || (first && first->orders == placed->orders)) return;
      if (!first) first = placed;
      keep(*placed);
      const auto place = std::upper_bound(
          candidates_.begin(), candidates_.end(), *placed,
          [&](const Placed& a, const Placed& b) { return better(a.line, b.line); });
      candidates_.insert(place, std::move(*placed));
      if (static_cast<long>(candidates_.size()) > most_candidates_) candidates_.pop_back();
    }
  }

  // Moves ops into gaps, the most promising candidate first.
  void polish() {
    for (const Placed& candidate : candidates_) {
      if (budget_ < kFill * ops_ || optimal()) return;
      budget_ -= kFill * ops_;
      keep(fill_gaps(shape_, cap_, candidate));
    }
  }

  // Considers the published orders.
  void papers() {
    if (!shape_.v_shape) {
      for (const int reach : {2, 1}) {
        const Orders orders = zero_bubble(shape_, reach);
        const auto peaks = peak_chunks(orders);
        if (*std::max_element(peaks.begin(), peaks.end()) > cap_) continue;
        keep({orders, earliest_start(shape_, orders)});
        consider(orders);
      }
      return;
    }
    if (cap_ > 2 * shape_.stages && shape_.microbatches >= 2 * shape_.stages) {
      consider(dualpipe_v(shape_));
    }
    if (cap_ >= 2 * shape_.stages) {
      Shape unit = shape_;
      unit.forward = unit.backward = unit.wgrad = 1;
      unit.transfer = 0;
      consider(zbv_rounds(shape_, cap_));
      if (shape_.transfer > 0) consider(zbv_rounds(unit, cap_));
    } else {
      consider(repeat_block(shape_, RepeatedBlock::v_half));
      consider(repeat_block(shape_, RepeatedBlock::v_min));
    }
  }

  // Returns whether the cap is between the memory of V-Min's block and of V-Half's, so that
  // neither suits.
  bool roomy() const {
    return shape_.v_shape && cap_ <= shape_.stages && cap_ > 2 * ((shape_.stages + 4) / 3);
  }

  std::vector<Policy> policies() const {
    using Prefer = Policy::Prefer;
    std::vector<Policy> policies;
    const int p = shape_.stages;
    std::vector<std::vector<int>> limits(1);
    if (shape_.v_shape) {
      // Most chunk-0 activations in flight on stage s; falls with s as in the blocks of
      // V-Half and V-Min.
      const auto falling = [&](double share, double slope) {
        std::vector<int> limit;
        for (int s = 0; s < p; ++s) {
          const int held = static_cast<int>(std::ceil(share * p - slope * s - 1e-9));
          limit.push_back(std::clamp(held + 1, 1, cap_));
        }
        return limit;
      };
      const auto half = falling(1, 0.5), least = falling(2 / 3., 1 / 3.);
      // A limit helps more with less memory: the most promising one is first.
      if (cap_ >= 2 * p) {
        limits = {{}, half, least};
      } else if (cap_ > p) {
        limits = {half, {}, least};
      } else if (roomy()) {
        limits = {falling(0.9, 0.5), falling(0.75, 1 / 3.), least, half, {}};
      } else {
        limits = {least, half, {}};
      }
    }
    const std::vector<Prefer> preferences = shape_.v_shape
                                                ? std::vector{Prefer::forward, Prefer::alternate,
                                                              Prefer::backward}
                                                : std::vector{Prefer::alternate, Prefer::backward,
                                                              Prefer::forward};
    for (const auto& limit : limits) {
      for (const Prefer prefer : preferences) {
        for (const bool drain : {true, false}) {
          if (!drain && !shape_.v_shape) break;
          for (const bool strict : {true, false})
            policies.push_back({prefer, drain, strict, limit});
        }
      }
    }
    return policies;
  }

  // Costs that the policies are run with. Orders made without transfers are often better
  // even with transfers.
  std::vector<Shape> cost_models() const {
    Shape unit = shape_, padded = shape_;
    unit.forward = unit.backward = unit.wgrad = 1;
    unit.transfer = padded.transfer = 0;
    padded.forward += shape_.transfer;
    padded.backward += shape_.transfer;
    std::vector<Shape> models = {unit};
    if (shape_.transfer > 0) models.push_back(padded);
    if (shape_.transfer > 0 || shape_.forward != shape_.backward ||
        shape_.forward != shape_.wgrad) {
      models.push_back(shape_);
    }
    if (roomy()) std::reverse(models.begin(), models.end());
    return models;
  }

  // Places the weight gradients of the best order anew, with shares of its idle time as patience.
  void refine() {
    for (double share = 0.95; share > 0.05; share -= 0.18) {
      for (;;) {
        if (budget_ < 0 || optimal()) return;
        budget_ -= (kPlace + kFill) * ops_;
        auto placed = place_weights(shape_, cap_, share * idle(*best_), best_->orders);
        if (!placed) break;
        auto filled = fill_gaps(shape_, cap_, *placed);
        if (!keep(std::move(filled))) break;
      }
    }
  }

  // Time from the start of a forward of `part` to the start of the next part's.
  double forward_hop(int part) const {
    const bool stays = shape_.stage_of(part) == shape_.stage_of(part + 1);
    return shape_.forward + (stays ? 0 : shape_.transfer);
  }
  // As forward_hop, for input gradients: from `part` to the part before it.
  double backward_hop(int part) const {
    const bool stays = shape_.stage_of(part) == shape_.stage_of(part - 1);
    return shape_.backward + (stays ? 0 : shape_.transfer);
  }

  TimeLine lower_bound() const {
    const int last = shape_.parts() - 1, count = shape_.chunks * shape_.microbatches;
    TimeLine bound;
    double first = 0;  // when stage s starts
    const auto span_is_at_least = [&](double start, double span) {
      bound.longest_span = std::max(bound.longest_span, span);
      bound.makespan = std::max(bound.makespan, start + span);
    };
    for (int s = 0; s < shape_.stages; ++s) {
      if (s > 0) first += forward_hop(s - 1);
      // Head: a stage can run at most `cap` forwards before its first gradient arrives.
      double wait = shape_.forward;
      for (int part = s; part < last; ++part) wait += forward_hop(part);
      for (int part = last; part > shape_.part(s, shape_.chunks - 1); --part) {
        wait += backward_hop(part);
      }
      const double head = std::max(0.0, wait - std::min(cap_, count) * shape_.forward);
      span_is_at_least(first, shape_.busy() + head);
      // Tail: at most `cap` weight gradients are left after the last input gradient of stage s,
      // which the earlier stages, which also started earlier, still wait for.
      double span = count * (shape_.forward + shape_.backward) +
                    std::max(0, count - cap_) * shape_.wgrad + shape_.wgrad;
      double start = first;
      for (int part = s; part > 0; --part) {
        span += forward_hop(part - 1) + backward_hop(part);
        start -= forward_hop(part - 1);
        span_is_at_least(start, span);
      }
    }
    return bound;
  }

  const Shape& shape_;
  const int cap_;
  long ops_ = 0;
  long budget_ = 0;  // steps over ops left
  double epsilon_ = 0;
  TimeLine bound_;  // lower bounds of the longest span and the makespan
  std::optional<Placed> best_;
  std::vector<Placed> candidates_;  // best first
  long most_candidates_ = 0;
};

}  // namespace

Orders search(const Shape& shape, int cap) { return Search(shape, cap).run(); }

Orders searched_orders(const Description& schedule, const ScheduleOptions& options,
                       const Shape& shape) {
  double cap = schedule.flight_cap(options.stages);
  if (options.memory_limit) cap = std::min(cap, *options.memory_limit);
  const int chunks = static_cast<int>(cap * shape.chunks + 1e-9);
  if (chunks < shape.chunks) {
    fail("schedule", "{} holds at least 1 microbatch per stage, but got memory-limit {}",
         options.name, *options.memory_limit);
  }
  return search(shape, chunks);
}

}  // namespace perigee::schedule
