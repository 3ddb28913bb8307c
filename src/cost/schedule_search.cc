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

  // Keeps `placed` if it is the best so far. Returns whether it is.
  bool keep(Placed placed) {
    if (best_ && !better(placed.line, best_->line)) return false;
    best_ = std::move(placed);
    return true;
  }

  // Completes a skeleton in two ways: weight gradients in every gap, or only where they delay
  // nothing.
  void consider(const Orders& skeleton) {
    for (const double patience : {0.0, kForever}) {
      budget_ -= ops_;
      auto placed = place_weights(shape_, cap_, patience, skeleton);
      if (!placed) return;
      // Moving ops up pays where the result is near the best.
      const bool near = !best_ || placed->line.longest_span < 1.25 * best_->line.longest_span;
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
      for (const bool half : {true, false}) {
        auto& limit = limits.emplace_back();
        for (int s = 0; s < p; ++s) {
          limit.push_back(std::clamp(half ? p - s / 2 + 1 : (4 * p - 2 * s + 5) / 6 + 1, 1, cap_));
        }
      }
      // Where memory is short the blocks' limits come first.
      if (cap_ < 2 * p) std::rotate(limits.begin(), limits.begin() + 1, limits.end());
    }
    for (const bool drain : {true, false}) {
      if (!drain && !shape_.v_shape) break;
      for (const Prefer prefer : {Prefer::alternate, Prefer::forward, Prefer::backward}) {
        for (const bool strict : {true, false}) {
          for (const auto& limit : limits) policies.push_back({prefer, drain, strict, limit});
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
        const double idle = best_->line.longest_span - shape_.busy();
        auto placed = place_weights(shape_, cap_, share * idle, best_->orders);
        if (!placed) break;
        auto filled = fill_gaps(shape_, cap_, *placed);
        if (!keep(std::move(filled))) break;
      }
    }
  }

  // A stage can run at most `cap` forwards before the first input gradient reaches it.
  double lower_bound() const {
    double bound = shape_.busy();
    for (int s = 0; s < shape_.stages; ++s) {
      double wait = 0;  // from the stage's first forward to its first input gradient
      for (int part = s; part < shape_.parts(); ++part) {
        wait += shape_.forward;
        if (part + 1 < shape_.parts() && shape_.stage_of(part + 1) != shape_.stage_of(part)) {
          wait += shape_.transfer;
        }
      }
      const int first = shape_.part(s, shape_.chunks - 1);
      for (int part = shape_.parts() - 1; part > first; --part) {
        wait += shape_.backward;
        if (shape_.stage_of(part - 1) != shape_.stage_of(part)) wait += shape_.transfer;
      }
      const int forwards = std::min(cap_, shape_.chunks * shape_.microbatches);
      bound = std::max(bound, shape_.busy() + wait - forwards * shape_.forward);
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

Orders join_backwards(const Shape& shape, const Orders& orders) {
  const TimeLine line = earliest_start(shape, orders);
  // Start of each input gradient, by part and microbatch.
  std::vector<double> starts(static_cast<size_t>(shape.parts()) * shape.microbatches);
  const auto index = [&](int part, int microbatch) {
    return static_cast<size_t>(part) * shape.microbatches + microbatch;
  };
  for (int s = 0; s < shape.stages; ++s) {
    for (size_t i = 0; i < orders[s].size(); ++i) {
      const auto& op = orders[s][i];
      if (op.kind == PipelineKind::input_grad) {
        starts[index(shape.part(s, op.chunk), op.microbatch)] = line.start[s][i];
      }
    }
  }
  const double epsilon = 1e-9 * (shape.backward + shape.wgrad);
  Orders joined(shape.stages);
  for (int s = 0; s < shape.stages; ++s) {
    for (size_t i = 0; i < orders[s].size(); ++i) {
      PipelineOp op = orders[s][i];
      const PipelineOp own{PipelineKind::weight_grad, op.microbatch, op.chunk};
      if (op.kind == PipelineKind::input_grad && i + 1 < orders[s].size() &&
          orders[s][i + 1] == own) {
        const int part = shape.part(s, op.chunk);
        const double end = line.start[s][i] + shape.backward + shape.wgrad;
        const double sent = part > 0 && shape.stage_of(part - 1) != s ? end + shape.transfer : end;
        const bool behind = line.start[s][i + 1] <= line.start[s][i] + shape.backward + epsilon;
        if (behind && (part == 0 || starts[index(part - 1, op.microbatch)] >= sent - epsilon)) {
          op.kind = PipelineKind::backward;
          ++i;
        }
      }
      joined[s].push_back(op);
    }
  }
  return joined;
}

}  // namespace perigee::schedule
