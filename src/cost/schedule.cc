#include "cost/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/error.h"
#include "cost/schedule_fixed.h"
#include "cost/schedule_search.h"
#include "cost/schedule_shape.h"
#include "cost/schedule_weights.h"

namespace perigee {
namespace {

using schedule::Orders;
using schedule::Shape;

const std::array<std::string, 11> kNames = {"gpipe", "1f1b",       "interleaved", "eager_1f1b",
                                            "zb1p",  "zb2p",       "zbv",         "v_half",
                                            "v_min", "dualpipe_v", "looped_bfs"};

constexpr int64_t kMostOps = 1 << 22;

bool is_v_shape(std::string_view name) {
  return name == "zbv" || name == "v_half" || name == "v_min" || name == "dualpipe_v";
}

bool has_chunks(std::string_view name) { return name == "interleaved" || name == "looped_bfs"; }

void check_options(const ScheduleOptions& o) {
  if (std::find(kNames.begin(), kNames.end(), o.name) == kNames.end()) {
    fail("schedule", "unknown schedule \"{}\"{}; there are {}", o.name,
         did_you_mean(o.name, kNames), fmt::join(kNames, ", "));
  }
  if (o.stages < 1) fail("schedule", "stages must be at least 1, but got {}", o.stages);
  if (o.microbatches < 1) {
    fail("schedule", "microbatches must be at least 1, but got {}", o.microbatches);
  }
  if (o.chunks && *o.chunks < 1)
    fail("schedule", "chunks must be at least 1, but got {}", *o.chunks);
  if (o.extra < 0) fail("schedule", "extra must be at least 0, but got {}", o.extra);
  if (o.group && o.name != "interleaved") {
    fail("schedule", "only interleaved has a group, but got group {} for {}", *o.group, o.name);
  }
  if (o.extra != 0 && o.name != "1f1b") {
    fail("schedule", "only 1f1b has extra, but got extra {} for {}", o.extra, o.name);
  }
  if (o.delay_weights && splits_backward(o.name)) {
    fail("schedule", "{} delays weight gradients anyway: leave delay_weights out", o.name);
  }
  if (is_v_shape(o.name) && o.chunks.value_or(2) != 2) {
    fail("schedule", "{} has 2 chunks per stage, but got {}", o.name, *o.chunks);
  }
  if (!is_v_shape(o.name) && !has_chunks(o.name) && o.chunks.value_or(1) != 1) {
    fail("schedule", "{} has 1 chunk per stage, but got {}", o.name, *o.chunks);
  }
  const std::array<std::pair<const char*, double>, 5> costs = {
      {{"forward", o.forward},
       {"backward", o.backward},
       {"wgrad", o.wgrad},
       {"transfer", o.transfer},
       {"memory-limit", o.memory_limit.value_or(0)}}};
  for (const auto& [key, value] : costs) {
    if (!std::isfinite(value) || value < 0) {
      fail("schedule", "{} must be a finite number of at least 0, but got {}", key, value);
    }
  }
  if (o.forward + o.backward + o.wgrad <= 0) {
    fail("schedule", "forward, backward and wgrad must not all be 0");
  }
}

Shape make_shape(const ScheduleOptions& o) {
  Shape shape;
  shape.stages = o.stages;
  shape.microbatches = o.microbatches;
  shape.v_shape = is_v_shape(o.name);
  shape.chunks = o.chunks.value_or(default_chunks(o.name));
  shape.forward = o.forward / shape.chunks;
  shape.backward = o.backward / shape.chunks;
  shape.wgrad = o.wgrad / shape.chunks;
  shape.transfer = o.transfer;
  const int64_t ops = int64_t{1} * o.stages * o.microbatches;
  if (ops > kMostOps || ops * shape.chunks > kMostOps) {
    fail("schedule", "stages * microbatches * chunks must be at most {}, but got {} * {} * {}",
         kMostOps, o.stages, o.microbatches, shape.chunks);
  }
  return shape;
}

Orders interleaved_orders(const ScheduleOptions& o, const Shape& shape) {
  if (o.microbatches < o.stages) {
    fail("schedule", "interleaved with {} stages exists for at least {} microbatches, but got {}",
         o.stages, o.stages, o.microbatches);
  }
  const int group = o.group.value_or(o.stages);
  if (group < o.stages || group > o.microbatches) {
    fail(
        "schedule",
        "interleaved with {} stages and {} microbatches exists for a group of {} to {}, but got {}",
        o.stages, o.microbatches, o.stages, o.microbatches, group);
  }
  const int rest = o.microbatches % group;
  if (rest != 0 && rest < o.stages) {
    fail("schedule",
         "interleaved with {} stages and groups of {} exists for microbatches that are a multiple "
         "of "
         "{}{}, but got {}",
         o.stages, group, group,
         group > o.stages ? fmt::format(" or leave at least {} over", o.stages) : "",
         o.microbatches);
  }
  return schedule::interleaved(shape, group);
}

// Most chunk activations that a searched schedule may hold on a stage.
int most_chunks(const ScheduleOptions& o, const Shape& shape) {
  double cap = memory_cap(o.name, o.stages);
  if (o.memory_limit) cap = std::min(cap, *o.memory_limit);
  return static_cast<int>(cap * shape.chunks + 1e-9);
}

Orders searched_orders(const ScheduleOptions& o, const Shape& shape) {
  if (o.name == "v_min" && o.stages < 4) {
    fail("schedule", "v_min exists for at least 4 stages, but got {}", o.stages);
  }
  if (o.name == "dualpipe_v" && o.microbatches < 2 * o.stages) {
    fail("schedule", "dualpipe_v with {} stages exists for at least {} microbatches, but got {}",
         o.stages, 2 * o.stages, o.microbatches);
  }
  const int cap = most_chunks(o, shape);
  if (cap < shape.chunks) {
    fail("schedule", "{} holds at least 1 microbatch per stage, but got memory-limit {}", o.name,
         *o.memory_limit);
  }
  auto orders = schedule::search(shape, cap);
  return o.name == "dualpipe_v" ? schedule::join_backwards(shape, orders) : orders;
}

// Takes the weight gradients out of backward passes.
Orders delay_weights(const Shape& shape, Orders orders) {
  const auto peaks = schedule::peak_chunks(orders);
  const int most = *std::max_element(peaks.begin(), peaks.end());
  for (auto& order : orders) {
    for (auto& op : order) {
      if (op.kind == PipelineKind::backward) op.kind = PipelineKind::input_grad;
    }
  }
  // In every gap, or only where they delay nothing.
  const auto eager = schedule::place_weights(shape, most, 0, orders);
  const auto patient =
      schedule::place_weights(shape, most, std::numeric_limits<double>::infinity(), orders);
  if (!eager || !patient) fail("schedule", "weight gradients must fit between the others");
  const auto time = [](const schedule::Placed& placed) {
    return std::pair(placed.line.longest_span, placed.line.makespan);
  };
  return time(*patient) < time(*eager) ? patient->orders : eager->orders;
}

Orders make_orders(const ScheduleOptions& o, const Shape& shape) {
  if (o.name == "interleaved") return interleaved_orders(o, shape);
  if (o.name == "looped_bfs") return schedule::looped_bfs(shape);
  if (o.name != "gpipe" && o.name != "1f1b" && o.name != "eager_1f1b") {
    return searched_orders(o, shape);
  }
  std::vector<int> in_flight;
  for (int s = 0; s < o.stages; ++s) {
    const int64_t left = o.stages - s;
    const int64_t wanted = o.name == "gpipe"  ? o.microbatches
                           : o.name == "1f1b" ? left + o.extra
                                              : 2 * left - 1;
    in_flight.push_back(static_cast<int>(std::min<int64_t>(wanted, o.microbatches)));
  }
  return schedule::warm_up_then_alternate(shape, in_flight);
}

}  // namespace

bool splits_backward(std::string_view name) {
  return is_v_shape(name) || name == "zb1p" || name == "zb2p";
}

bool schedule_exists(std::string_view name, int stages, int microbatches, int chunks) {
  if (!has_chunks(name) && chunks != default_chunks(name)) return false;
  if (name == "interleaved") return microbatches % stages == 0;
  if (name == "v_min") return stages >= 4;
  return name != "dualpipe_v" || microbatches >= 2 * stages;
}

double memory_cap(std::string_view name, int stages) {
  if (name == "zb2p") return 2.0 * stages;
  if (name == "v_half") return stages / 2.0 + 1;
  if (name == "v_min") return stages / 2.0;
  if (name == "dualpipe_v") return stages + 1;
  return stages;  // zb1p, zbv
}

int default_chunks(std::string_view name) { return is_v_shape(name) || has_chunks(name) ? 2 : 1; }

std::vector<int> stage_of_parts(std::string_view name, int stages, int chunks) {
  const Shape shape{.stages = stages, .chunks = chunks, .v_shape = is_v_shape(name)};
  std::vector<int> result;
  for (int part = 0; part < shape.parts(); ++part) result.push_back(shape.stage_of(part));
  return result;
}

std::span<const std::string> schedule_names() { return kNames; }

Schedule make_schedule(const ScheduleOptions& options) {
  check_options(options);
  const Shape shape = make_shape(options);
  Schedule result;
  result.name = options.name;
  result.stages = options.stages;
  result.microbatches = options.microbatches;
  result.chunks = shape.chunks;
  result.orders = make_orders(options, shape);
  if (options.delay_weights) result.orders = delay_weights(shape, std::move(result.orders));

  auto line = schedule::earliest_start(shape, result.orders);
  result.start = std::move(line.start);
  result.makespan = line.makespan;
  const auto peaks = schedule::peak_chunks(result.orders);
  double busy = 0;
  for (int s = 0; s < options.stages; ++s) {
    const auto& order = result.orders[s];
    const double end = result.start[s].back() + shape.duration(order.back().kind);
    const double span = end - result.start[s].front();
    const double idle = span - shape.busy();
    result.span.push_back(span);
    result.idle.push_back(idle <= 1e-12 * span ? 0 : idle);  // rounding is no idle time
    result.peak_in_flight.push_back(static_cast<double>(peaks[s]) / shape.chunks);
    busy += shape.busy();
    auto& parts = result.parts.emplace_back();
    for (int c = 0; c < shape.chunks; ++c) parts.push_back(shape.part(s, c));
  }
  result.bubble_ratio = std::max(0.0, 1 - busy / (options.stages * result.makespan));

  const double peak = *std::max_element(result.peak_in_flight.begin(), result.peak_in_flight.end());
  if (options.memory_limit && peak > *options.memory_limit * (1 + 1e-9)) {
    fail("schedule",
         "{} with {} stages and {} microbatches holds {} in flight, but got memory-limit {}",
         options.name, options.stages, options.microbatches, peak, *options.memory_limit);
  }
  return result;
}

}  // namespace perigee
