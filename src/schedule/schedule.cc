#include "schedule/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/fail.h"
#include "schedule/description.h"
#include "schedule/search/weights.h"

namespace perigee {
namespace {

using schedule::Description;
using schedule::Orders;
using schedule::Shape;

constexpr int64_t kMostOps = 1 << 22;
constexpr double kMostCost = 1e15;  // so that sums of all ops are precise

void check_options(const Description& schedule, const ScheduleOptions& o) {
  if (o.stages < 1) fail("schedule", "stages must be at least 1, but got {}", o.stages);
  if (o.microbatches < 1) {
    fail("schedule", "microbatches must be at least 1, but got {}", o.microbatches);
  }
  if (o.chunks && *o.chunks < 1)
    fail("schedule", "chunks must be at least 1, but got {}", *o.chunks);
  if (o.extra < 0) fail("schedule", "extra must be at least 0, but got {}", o.extra);
  if (o.group && !schedule.has_group) {
    fail("schedule", "only {} has a group, but got group {} for {}",
         schedule::names_where([](const Description& d) { return d.has_group; }), *o.group, o.name);
  }
  if (o.extra != 0 && !schedule.has_extra) {
    fail("schedule", "only {} has extra, but got extra {} for {}",
         schedule::names_where([](const Description& d) { return d.has_extra; }), o.extra, o.name);
  }
  if (o.delay_weights && schedule.splits_backward) {
    fail("schedule", "{} delays weight gradients anyway: leave delay_weights out", o.name);
  }
  const int chunks = schedule.default_chunks();
  if (!schedule.free_chunks && o.chunks.value_or(chunks) != chunks) {
    fail("schedule", "{} has {} chunk{} per stage, but got {}", o.name, chunks,
         chunks == 1 ? "" : "s", *o.chunks);
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
    if (value > kMostCost) {
      fail("schedule", "{} must be at most {}, but got {}", key, kMostCost, value);
    }
  }
  if (o.forward + o.backward + o.wgrad <= 0) {
    fail("schedule", "forward, backward and wgrad must not all be 0");
  }
}

Shape make_shape(const Description& schedule, const ScheduleOptions& o) {
  Shape shape;
  shape.stages = o.stages;
  shape.microbatches = o.microbatches;
  shape.v_shape = schedule.placement == schedule::Placement::v_shape;
  shape.chunks = o.chunks.value_or(schedule.default_chunks());
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

// Splits the backward passes of orders with whole ones.
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
  const auto patient = schedule::place_weights(shape, most, std::numeric_limits<double>::infinity(),
                                               orders);
  if (!eager || !patient) fail("schedule", "weight gradients must fit into the orders");
  const auto time = [](const schedule::Placed& placed) {
    return std::pair(placed.line.longest_span, placed.line.makespan);
  };
  return time(*patient) < time(*eager) ? patient->orders : eager->orders;
}

}  // namespace

std::span<const std::string> schedule_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> names;
    for (const auto& one : schedule::descriptions()) names.push_back(one.name);
    return names;
  }();
  return names;
}

bool splits_backward(std::string_view name) { return schedule::describe(name).splits_backward; }

int default_chunks(std::string_view name) { return schedule::describe(name).default_chunks(); }

bool schedule_exists(std::string_view name, int stages, int microbatches, int chunks) {
  return schedule::describe(name).exists_for(stages, microbatches, chunks);
}

std::vector<int> stage_of_parts(std::string_view name, int stages, int chunks) {
  const bool v_shape = schedule::describe(name).placement == schedule::Placement::v_shape;
  const Shape shape{.stages = stages, .chunks = chunks, .v_shape = v_shape};
  std::vector<int> result;
  for (int part = 0; part < shape.parts(); ++part) result.push_back(shape.stage_of(part));
  return result;
}

Schedule make_schedule(const ScheduleOptions& options) {
  return schedule::make_schedule(schedule::describe(options.name), options);
}

Schedule schedule::make_schedule(const Description& description, const ScheduleOptions& options) {
  check_options(description, options);
  const Shape shape = make_shape(description, options);
  Schedule result;
  result.name = options.name;
  result.stages = options.stages;
  result.microbatches = options.microbatches;
  result.chunks = shape.chunks;
  result.orders = description.orders(description, options, shape);
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
    result.idle.push_back(idle <= 1e-12 * span ? 0 : idle);  // below rounding it is 0
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
