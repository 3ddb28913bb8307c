// The table of schedules against the built schedules: each description's properties hold for
// its orders.
#include <algorithm>
#include <catch2/catch.hpp>

#include "schedule/description.h"
#include "schedule/schedule.h"

using namespace perigee;
using schedule::Description;
using schedule::descriptions;
using schedule::PipelineTimes;

namespace {

struct StageCosts {
  double forward, backward, weights;  // seconds of a stage
};

const std::vector<StageCosts> kStageCosts = {{1, 1, 1}, {1, 1.25, 0.75}, {1, 2, 1}, {2, 1, 1}};

ScheduleOptions options_of(const Description& schedule, int stages, int microbatches, int chunks,
                           StageCosts costs = {1, 1, 1}) {
  ScheduleOptions options{.name = schedule.name, .stages = stages, .microbatches = microbatches};
  options.chunks = chunks;
  options.forward = costs.forward;
  options.backward = costs.backward;
  options.wgrad = costs.weights;
  return options;
}

// Returns the bubble of the description's closed form, for identical stages.
double closed_form(const Description& schedule, const ScheduleOptions& options) {
  const double stages = options.stages, chunks = *options.chunks;
  const double pass = options.forward + options.backward + options.wgrad;
  const PipelineTimes times{.stages = stages,
                            .chunks = chunks,
                            .microbatches = double(options.microbatches),
                            .forward = options.forward / chunks,
                            .backward = options.backward / chunks,
                            .weights = options.wgrad / chunks,
                            .transfer = options.transfer,
                            .all_stages = stages * pass,
                            .slowest = pass};
  return schedule.bubble_seconds(times);
}

double built_bubble(const ScheduleOptions& options) {
  const double pass = options.forward + options.backward + options.wgrad;
  return make_schedule(options).makespan - options.microbatches * pass;
}

// Calls f(schedule, stages, microbatches, chunks) for all counts for which the schedule exists.
template <class F>
void each(F f) {
  for (const auto& schedule : descriptions()) {
    for (const int stages : {2, 3, 4, 8}) {
      for (const int microbatches : {stages, 2 * stages, 3 * stages}) {
        for (const int chunks : {1, 2, 3}) {
          if (schedule.free_chunks && chunks == 1) continue;
          if (!schedule.exists_for(stages, microbatches, chunks)) continue;
          INFO(schedule.name << " " << stages << " " << microbatches << " " << chunks);
          f(schedule, stages, microbatches, chunks);
        }
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "each closed-form bubble equals the built schedule's, or is a lower bound of a searched one") {
  each([](const Description& schedule, int stages, int microbatches, int chunks) {
    for (const auto& costs : kStageCosts) {
      const auto options = options_of(schedule, stages, microbatches, chunks, costs);
      const double closed = closed_form(schedule, options), built = built_bubble(options);
      if (schedule.searched) {
        CHECK(built >= closed - 1e-9);
      } else {
        CHECK(built == Approx(closed).margin(1e-9));
      }
    }
  });
}

TEST_CASE("no stage of a built schedule has more microbatches in flight than its description") {
  each([](const Description& schedule, int stages, int microbatches, int chunks) {
    const auto made = make_schedule(options_of(schedule, stages, microbatches, chunks));
    for (int stage = 0; stage < stages; ++stage) {
      const double most = std::min<double>(
          microbatches, schedule.in_flight({.stages = double(stages),
                                            .chunks = double(chunks),
                                            .microbatches = double(microbatches),
                                            .later_stages = double(stages - 1 - stage)}));
      const double built = made.peak_in_flight[static_cast<size_t>(stage)];
      if (schedule.warms_up) {
        CHECK(built == most);
      } else {
        CHECK(built <= most + 1e-9);
      }
    }
  });
}

TEST_CASE("a built schedule has the split backward passes and the chunks of its description") {
  each([](const Description& schedule, int stages, int microbatches, int chunks) {
    const auto made = make_schedule(options_of(schedule, stages, microbatches, chunks));
    bool split = false;
    for (const auto& order : made.orders) {
      split = split || std::ranges::any_of(order, [](const PipelineOp& op) {
                return op.kind == PipelineKind::weight_grad;
              });
    }
    // dualpipe_v joins an input gradient with the following weight gradient.
    if (!split) CHECK((!schedule.splits_backward || schedule.name == "dualpipe_v"));
    if (split) CHECK(schedule.splits_backward);
    CHECK(made.chunks == chunks);
    const bool v_shape = schedule.placement == schedule::Placement::v_shape;
    CHECK(made.parts.front().back() == (v_shape ? 2 * stages - 1 : (chunks - 1) * stages));
  });
}

TEST_CASE("no two schedules share a name or an alias, and a dominating schedule is in the table") {
  std::vector<std::string> names;
  for (const auto& schedule : descriptions()) {
    names.push_back(schedule.name);
    names.insert(names.end(), schedule.aliases.begin(), schedule.aliases.end());
    if (schedule.dominated_by.empty()) continue;
    CHECK(schedule::find_description(schedule.dominated_by) != nullptr);
  }
  std::ranges::sort(names);
  CHECK(std::ranges::adjacent_find(names) == names.end());
}
