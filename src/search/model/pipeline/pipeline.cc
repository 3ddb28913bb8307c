#include "search/model/pipeline/pipeline.h"

#include <algorithm>
#include <cmath>

#include "base/parallel.h"
#include "schedule/description.h"
#include "schedule/shape.h"

namespace perigee::search {
namespace {

constexpr int64_t kStagesSearched = 16;
// Microbatches a stage whose orders are searched; those of more microbatches extrapolate.
constexpr int64_t kRoundsSearched = 4;

// The pipeline as identical parts.
schedule::PipelineTimes times_of(const Choice& choice, const Passes& passes) {
  const auto stages = static_cast<double>(choice.pipe), chunks = static_cast<double>(choice.chunks);
  return {.stages = stages,
          .chunks = chunks,
          .microbatches = static_cast<double>(choice.microbatches),
          .forward = passes.forward / (stages * chunks),
          .backward = passes.backward / (stages * chunks),
          .weights = passes.weights / (stages * chunks),
          .recomputed = passes.recomputed / (stages * chunks),
          .transfer = passes.transfer};
}

}  // namespace

double in_flight(const Choice& choice, int64_t later_stages) {
  if (choice.pipe == 1) return 1;
  const schedule::FlightCounts counts{.stages = static_cast<double>(choice.pipe),
                                      .chunks = static_cast<double>(choice.chunks),
                                      .microbatches = static_cast<double>(choice.microbatches),
                                      .later_stages = static_cast<double>(later_stages)};
  // Parts share room for one more than are in flight (compile/stages/frame_pools.h).
  const double shared = counts.chunks > 1 ? 1 / counts.chunks : 0;
  return std::min(counts.microbatches,
                  schedule::describe(choice.schedule).in_flight(counts) + shared);
}

std::pair<double, double> in_flight_on_first_stage(const Choice& choice) {
  const auto microbatches = static_cast<double>(choice.microbatches);
  const auto& schedule = schedule::describe(choice.schedule);
  const double first = 2 * schedule.flight_cap(static_cast<int>(choice.pipe));
  return {std::min(microbatches, first),
          std::min(microbatches, static_cast<double>(schedule.second_part_in_flight))};
}

double bubble_seconds(const Choice& choice, const Passes& passes, double sum,
                      const SlowestStage& slowest, double excess) {
  if (choice.pipe == 1) return 0;
  auto times = times_of(choice, passes);
  times.all_stages = sum;
  times.slowest = slowest.seconds;
  if (slowest.stage) times.slowest_stage = static_cast<double>(*slowest.stage);
  times.search_excess = excess;
  return schedule::describe(choice.schedule).bubble_seconds(times);
}

void SearchedOrders::find(const Choice& choice, const std::vector<double>& costs,
                          const std::vector<int64_t>& microbatches) {
  std::vector<std::pair<ScheduleOptions, Schedule*>> missing;
  for (const auto count : microbatches) {
    auto& orders = orders_[{choice.schedule, choice.pipe, count, costs}];
    if (!orders.orders.empty()) continue;
    ScheduleOptions options{.name = choice.schedule,
                            .stages = static_cast<int>(choice.pipe),
                            .microbatches = static_cast<int>(count)};
    options.forward = costs[0];
    options.backward = costs[1];
    options.wgrad = costs[2];
    options.transfer = costs[3];
    missing.emplace_back(options, &orders);
  }
  in_parallel(missing.size(),
              [&](size_t k) { *missing[k].second = make_schedule(missing[k].first); });
}

double SearchedOrders::excess_of(const Choice& choice, const Passes& passes,
                                 const std::vector<double>& costs) const {
  const auto& orders = orders_.at({choice.schedule, choice.pipe, choice.microbatches, costs});
  auto part = times_of(choice, passes);
  part.all_stages = passes.total();
  part.slowest = part.chunks * part.pass();
  const schedule::Shape shape{.stages = static_cast<int>(choice.pipe),
                              .microbatches = static_cast<int>(choice.microbatches),
                              .chunks = orders.chunks,
                              .v_shape = true,
                              .forward = part.forward,
                              .backward = part.backward,
                              .wgrad = part.weights,
                              .transfer = part.transfer};
  const double found = schedule::earliest_start(shape, orders.orders).makespan;
  return std::max(0.0,
                  found - shape.busy() - schedule::describe(choice.schedule).bubble_seconds(part));
}

double SearchedOrders::excess(const Choice& choice, const Passes& passes,
                              const std::vector<double>& costs) {
  if (choice.pipe == 1 || !schedule::describe(choice.schedule).exceeds_bound) return 0;
  auto fewer = choice;
  auto part = passes;
  part.recomputed = 0;  // hidden in the bound and in the orders
  fewer.pipe = std::min(choice.pipe, kStagesSearched);
  const double share = static_cast<double>(fewer.pipe) / static_cast<double>(choice.pipe);
  for (double* seconds : {&part.forward, &part.backward, &part.weights}) *seconds *= share;
  const auto wanted = std::max<int64_t>(1, std::llround(share * double(choice.microbatches)));
  const auto excess_with = [&](int64_t microbatches) {
    fewer.microbatches = microbatches;
    return excess_of(fewer, part, costs);
  };
  const auto most_microbatches = kRoundsSearched * fewer.pipe;
  find(fewer, costs,
       wanted <= most_microbatches ? std::vector{wanted}
                                   : std::vector{most_microbatches / 2, most_microbatches});
  if (wanted <= most_microbatches) return excess_with(wanted) / share;
  const double half_excess = excess_with(most_microbatches / 2),
               full_excess = excess_with(most_microbatches);
  const double excess_per_microbatch = std::max(0.0, full_excess - half_excess) /
                                       static_cast<double>(most_microbatches -
                                                           most_microbatches / 2);
  return (full_excess + excess_per_microbatch * static_cast<double>(wanted - most_microbatches)) /
         share;
}

}  // namespace perigee::search
