#include "tests/schedule/support.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace perigee::testing {
namespace {

using Key = std::tuple<char, int, int>;  // 'F' or 'B', part, microbatch

int part_of(bool v_shape, int stages, int stage, int chunk) {
  if (!v_shape) return chunk * stages + stage;
  return chunk == 0 ? stage : 2 * stages - 1 - stage;
}

bool is_v(const std::string& name) {
  return name == "zbv" || name == "v_half" || name == "v_min" || name == "dualpipe_v";
}

double cost(const ScheduleOptions& o, int chunks, PipelineKind kind) {
  const double f = o.forward / chunks, b = o.backward / chunks, w = o.wgrad / chunks;
  if (kind == PipelineKind::forward) return f;
  if (kind == PipelineKind::backward) return b + w;
  return kind == PipelineKind::input_grad ? b : w;
}

// Returns the dependencies of an op: (F or B, part, microbatch), and whether it is on
// another stage.
std::vector<std::pair<Key, bool>> inputs(bool v_shape, int stages, int chunks, int stage,
                                         const PipelineOp& op) {
  const int part = part_of(v_shape, stages, stage, op.chunk), last = stages * chunks - 1;
  const bool fold = v_shape && chunks == 2;
  const auto other = [&](int next) {
    return stages > 1 && !(fold && std::min(part, next) == stages - 1);
  };
  const int m = op.microbatch;
  if (op.kind == PipelineKind::forward) {
    if (part == 0) return {};
    return {{{'F', part - 1, m}, other(part - 1)}};
  }
  if (op.kind == PipelineKind::weight_grad) return {{{'B', part, m}, false}};
  std::vector<std::pair<Key, bool>> result = {{{'F', part, m}, false}};
  if (part < last) result.push_back({{'B', part + 1, m}, other(part + 1)});
  return result;
}

// Returns the earliest starts by relaxation: sweeps over the stages until no start changes.
std::vector<std::vector<double>> starts(const ScheduleOptions& o, int chunks, bool v_shape,
                                        const PipelineOrders& orders) {
  std::vector<std::vector<double>> start(orders.size());
  std::map<Key, double> end;
  std::vector<double> free(orders.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < orders.size(); ++s) {
      while (start[s].size() < orders[s].size()) {
        const auto& op = orders[s][start[s].size()];
        double at = free[s];
        bool ready = true;
        for (const auto& [key, other] :
             inputs(v_shape, o.stages, chunks, static_cast<int>(s), op)) {
          const auto found = end.find(key);
          if (found == end.end()) {
            ready = false;
          } else {
            at = std::max(at, found->second + (other ? o.transfer : 0));
          }
        }
        if (!ready) break;
        start[s].push_back(at);
        free[s] = at + cost(o, chunks, op.kind);
        const int part = part_of(v_shape, o.stages, static_cast<int>(s), op.chunk);
        if (op.kind == PipelineKind::forward) end[{'F', part, op.microbatch}] = free[s];
        if (op.kind == PipelineKind::backward || op.kind == PipelineKind::input_grad) {
          end[{'B', part, op.microbatch}] = free[s];
        }
        moved = true;
      }
    }
  }
  return start;
}

// Returns the schedule's cap in microbatches, or a number above any.
double cap_of(const ScheduleOptions& o) {
  const double p = o.stages;
  double cap = 1e9;
  if (o.name == "zb1p" || o.name == "zbv") cap = p;
  if (o.name == "zb2p") cap = 2 * p;
  if (o.name == "v_half") cap = p / 2 + 1;
  if (o.name == "v_min") cap = p / 2;
  if (o.name == "dualpipe_v") cap = p + 1;
  return std::min(cap, o.memory_limit.value_or(1e9));
}

std::string check_ops(const ScheduleOptions& o, const Schedule& schedule) {
  for (int s = 0; s < o.stages; ++s) {
    std::map<PipelineKind, std::map<std::pair<int, int>, int>> count;
    for (const auto& op : schedule.orders[s]) {
      if (op.microbatch < 0 || op.microbatch >= o.microbatches || op.chunk < 0 ||
          op.chunk >= schedule.chunks) {
        return fmt::format("stage {}: no such op {}", s, to_text(op));
      }
      if (++count[op.kind][{op.microbatch, op.chunk}] > 1) {
        return fmt::format("stage {}: {} twice", s, to_text(op));
      }
    }
    for (int m = 0; m < o.microbatches; ++m) {
      for (int c = 0; c < schedule.chunks; ++c) {
        const auto has = [&](PipelineKind kind) { return count[kind].count({m, c}) == 1; };
        const bool whole = has(PipelineKind::backward);
        const bool input = has(PipelineKind::input_grad), weight = has(PipelineKind::weight_grad);
        if (!has(PipelineKind::forward) || whole == input || input != weight) {
          return fmt::format("stage {}: microbatch {} chunk {} has not each op once", s, m, c);
        }
      }
    }
  }
  return "";
}

bool same(double a, double b) { return std::abs(a - b) <= 1e-9 * (1 + std::abs(a)); }

}  // namespace

std::string violation(const ScheduleOptions& o, const Schedule& schedule) {
  const bool v_shape = is_v(o.name);
  const int chunks = schedule.chunks;
  if (schedule.name != o.name || schedule.stages != o.stages ||
      schedule.microbatches != o.microbatches ||
      schedule.orders.size() != static_cast<size_t>(o.stages)) {
    return "name or counts differ";
  }
  for (int s = 0; s < o.stages; ++s) {
    for (int c = 0; c < chunks; ++c) {
      if (schedule.parts[s][c] != part_of(v_shape, o.stages, s, c)) {
        return fmt::format("stage {}: part of chunk {}", s, c);
      }
    }
  }
  if (auto wrong = check_ops(o, schedule); !wrong.empty()) return wrong;
  const auto expected = starts(o, chunks, v_shape, schedule.orders);
  double makespan = 0, busy = 0;
  for (int s = 0; s < o.stages; ++s) {
    const auto& order = schedule.orders[s];
    if (expected[s].size() < order.size()) {
      return fmt::format("stage {}: {} never gets its input", s,
                         to_text(order[expected[s].size()]));
    }
    double work = 0, held = 0, peak = 0;
    for (size_t i = 0; i < order.size(); ++i) {
      if (!same(schedule.start[s][i], expected[s][i])) {
        return fmt::format("stage {}: {} starts at {}, earliest {}", s, to_text(order[i]),
                           schedule.start[s][i], expected[s][i]);
      }
      work += cost(o, chunks, order[i].kind);
      if (order[i].kind == PipelineKind::forward) peak = std::max(peak, held += 1.0 / chunks);
      if (order[i].kind == PipelineKind::backward || order[i].kind == PipelineKind::weight_grad) {
        held -= 1.0 / chunks;
      }
    }
    const double end = expected[s].back() + cost(o, chunks, order.back().kind);
    const double span = end - expected[s].front();
    if (!same(schedule.span[s], span)) return fmt::format("stage {}: span", s);
    if (!same(schedule.idle[s], span - work)) return fmt::format("stage {}: idle", s);
    if (!same(schedule.peak_in_flight[s], peak)) return fmt::format("stage {}: peak", s);
    if (peak > cap_of(o) + 1e-9) {
      return fmt::format("stage {}: holds {}, at most {}", s, peak, cap_of(o));
    }
    makespan = std::max(makespan, end);
    busy += work;
  }
  if (!same(schedule.makespan, makespan)) return "makespan";
  if (!same(schedule.bubble_ratio, 1 - busy / (o.stages * makespan))) return "bubble ratio";
  return "";
}

double longest_span(const ScheduleOptions& o, int chunks, bool v_shape,
                    const PipelineOrders& orders) {
  const auto start = starts(o, chunks, v_shape, orders);
  double longest = 0;
  for (size_t s = 0; s < orders.size(); ++s) {
    const double end = start[s].back() + cost(o, chunks, orders[s].back().kind);
    longest = std::max(longest, end - start[s].front());
  }
  return longest;
}

double longest_span(const Schedule& schedule) {
  return *std::max_element(schedule.span.begin(), schedule.span.end());
}

double longest_idle(const ScheduleOptions& o) {
  return longest_span(make_schedule(o)) - o.microbatches * (o.forward + o.backward + o.wgrad);
}

PipelineOrders zero_bubble_by_hand(int stages, int microbatches, int reach) {
  PipelineOrders orders(stages);
  for (int s = 0; s < stages; ++s) {
    const int warm_up = std::min(microbatches, reach * (stages - s) - reach + 1);
    const int delay = reach *
                      s;  // weight gradients follow input gradients by this many microbatches
    auto& order = orders[s];
    for (int m = 0; m < warm_up; ++m) order.push_back({PipelineKind::forward, m, 0});
    for (int m = 0; m < microbatches; ++m) {
      order.push_back({PipelineKind::input_grad, m, 0});
      if (m >= delay) order.push_back({PipelineKind::weight_grad, m - delay, 0});
      if (m + warm_up < microbatches) order.push_back({PipelineKind::forward, m + warm_up, 0});
    }
    for (int m = std::max(0, microbatches - delay); m < microbatches; ++m) {
      order.push_back({PipelineKind::weight_grad, m, 0});
    }
  }
  return orders;
}

std::string words(const std::vector<PipelineOp>& order) {
  std::string text;
  for (const auto& op : order) text += (text.empty() ? "" : " ") + to_text(op);
  return text;
}

}  // namespace perigee::testing
