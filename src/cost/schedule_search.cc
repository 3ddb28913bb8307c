#include "cost/schedule_search.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "cost/schedule_blocks.h"
#include "cost/schedule_fixed.h"
#include "cost/schedule_greedy.h"
#include "cost/schedule_weights.h"

namespace perigee::schedule {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();

class Search {
 public:
  Search(const Shape& shape, int cap) : shape_(shape), cap_(cap) {
    ops_ = 3L * shape.parts() * shape.microbatches;
    budget_ = std::max(110'000L, 12 * ops_);
    epsilon_ = 1e-9 * (shape.busy() + shape.transfer * shape.parts());
    lower_bound_ = lower_bound();
  }

  Orders run() {
    // A plain pass first: it always finishes, whatever the cap.
    consider(run_greedy(shape_, cap_, {}));
    papers();
    refine();
    for (const Policy& policy : policies()) {
      for (const Shape& costs : cost_models()) {
        if (finished()) break;
        budget_ -= ops_;
        consider(run_greedy(costs, cap_, policy));
      }
    }
    refine();
    return std::move(best_->orders);
  }

 private:
  bool finished() const {
    return budget_ < refine_share() || best_->line.longest_span <= lower_bound_ + epsilon_;
  }
  long refine_share() const { return 5 * ops_; }

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
  // nothing.
  void consider(const Orders& skeleton) {
    std::optional<Placed> first;
    for (const double patience : {0.0, kForever}) {
      budget_ -= ops_;
      auto placed = place_weights(shape_, cap_, patience, skeleton);
      if (!placed || (first && first->orders == placed->orders)) return;
      if (!first) first = placed;
      // Moving ops up pays where the result is near the best.
      const bool near = !best_ || idle(*placed) < 1.5 * idle(*best_);
      if (near && placed->line.longest_span > lower_bound_ + epsilon_) {
        budget_ -= 2 * ops_;
        auto filled = fill_gaps(shape_, cap_, *placed);
        if (better(filled.line, placed->line)) placed = std::move(filled);
      }
      keep(std::move(*placed));
    }
  }

  void papers() {
    Shape unit = shape_;
    unit.forward = unit.backward = unit.wgrad = 1;
    unit.transfer = 0;
    if (shape_.v_shape) {
      if (cap_ > 2 * shape_.stages && shape_.microbatches >= 2 * shape_.stages) {
        consider(dualpipe_v(shape_));
      }
      if (cap_ >= 2 * shape_.stages) {
        consider(zbv_rounds(shape_, cap_));
        if (shape_.transfer > 0 && !finished()) consider(zbv_rounds(unit, cap_));
      } else {
        consider(repeat_block(shape_, Block::v_half));
        consider(repeat_block(shape_, Block::v_min));
      }
      return;
    }
    // ZB-H1 and ZB-H2, and what lies between them.
    for (const int slope : {2, 1}) {
      std::vector<int> in_flight;
      for (int s = 0; s < shape_.stages; ++s) {
        in_flight.push_back(std::min(cap_, slope * (shape_.stages - s) - slope + 1));
      }
      auto skeleton = warm_up_then_alternate(shape_, in_flight);
      for (auto& order : skeleton) {
        for (auto& op : order) {
          if (op.kind == PipelineKind::backward) op.kind = PipelineKind::input_grad;
        }
      }
      if (!finished()) consider(skeleton);
    }
  }

  std::vector<Policy> policies() const {
    using Prefer = Policy::Prefer;
    std::vector<Policy> policies;
    const int p = shape_.stages;
    std::vector<std::vector<int>> limits(1);
    if (shape_.v_shape) {
      // Chunk-0 activations that the V-Half and V-Min blocks hold, and one more.
      std::vector<int> half, least;
      for (int s = 0; s < p; ++s) {
        half.push_back(std::clamp(p - s / 2 + 1, 1, cap_));
        least.push_back(std::clamp((4 * p - 2 * s + 5) / 6 + 1, 1, cap_));
      }
      // The less memory there is the more a limit helps: the most likely comes first.
      if (cap_ >= 2 * p) {
        limits = {{}, half, least};
      } else if (cap_ > p) {
        limits = {half, {}, least};
      } else {
        limits = {least, half, {}};
      }
    }
    for (const auto& limit : limits) {
      for (const Prefer prefer : {Prefer::forward, Prefer::alternate, Prefer::backward}) {
        for (const bool drain : {true, false}) {
          if (!drain && !shape_.v_shape) break;
          for (const bool strict : {true, false})
            policies.push_back({prefer, drain, strict, limit});
        }
      }
    }
    return policies;
  }

  // Costs that the policies see. Orders made for costs without transfers are often better once
  // transfers are added.
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
    return models;
  }

  // Weight gradients placed again in the best order, with the idle time that is still missing as
  // patience.
  void refine() {
    for (double share = 0.95; share > 0.05; share -= 0.18) {
      for (;;) {
        if (budget_ < 0 || best_->line.longest_span <= lower_bound_ + epsilon_) return;
        budget_ -= 3 * ops_;
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
  // The same for input gradients, from `part` to the part before it.
  double backward_hop(int part) const {
    const bool stays = shape_.stage_of(part) == shape_.stage_of(part - 1);
    return shape_.backward + (stays ? 0 : shape_.transfer);
  }

  // No longest span can be below this.
  double lower_bound() const {
    const int last = shape_.parts() - 1, count = shape_.chunks * shape_.microbatches;
    const double forwards = count * shape_.forward;
    double bound = shape_.busy();
    for (int s = 0; s < shape_.stages; ++s) {
      // Head: a stage can run at most `cap` forwards before its first input gradient comes.
      double wait = shape_.forward;
      for (int part = s; part < last; ++part) wait += forward_hop(part);
      for (int part = last; part > shape_.part(s, shape_.chunks - 1); --part) {
        wait += backward_hop(part);
      }
      bound = std::max(bound, shape_.busy() + wait - std::min(cap_, count) * shape_.forward);
      // Tail: at most `cap` weight gradients are left after the last input gradient of stage s,
      // which then travels on to the earlier stages; they started earlier too.
      double done = forwards + count * shape_.backward + std::max(0, count - cap_) * shape_.wgrad;
      for (int part = s; part > 0; --part) {
        done += forward_hop(part - 1) + backward_hop(part);
        bound = std::max(bound, done + shape_.wgrad);
      }
    }
    return bound;
  }

  const Shape& shape_;
  const int cap_;
  long ops_ = 0;
  long budget_ = 0;  // steps over ops left
  double epsilon_ = 0;
  double lower_bound_ = 0;
  std::optional<Placed> best_;
};

}  // namespace

Orders search(const Shape& shape, int cap) { return Search(shape, cap).run(); }

}  // namespace perigee::schedule
