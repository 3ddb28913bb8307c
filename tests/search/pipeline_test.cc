// The predicted in-flight microbatches and bubbles of pipeline schedules, against built schedules.
#include "search/model/pipeline/pipeline.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "schedule/schedule.h"
#include "schedule/shape.h"

using namespace perigee;
using search::Choice;
using search::Passes;

namespace {

struct Costs {
  double forward, backward, weights;  // seconds of a stage
};

const std::vector<Costs> kCosts = {{1, 1, 1}, {1, 1.25, 0.75}, {1, 2, 1}, {1, 1.5, 0.5}, {2, 1, 1}};

Choice pipeline(const std::string& schedule, int64_t stages, int64_t microbatches, int64_t chunks) {
  return {.pipe = stages, .microbatches = microbatches, .schedule = schedule, .chunks = chunks};
}

Passes passes_of(Costs costs, int64_t stages, double transfer) {
  const auto all = static_cast<double>(stages);
  return {.forward = all * costs.forward,
          .backward = all * costs.backward,
          .weights = all * costs.weights,
          .transfer = transfer};
}

// Seconds of a step on homogeneous stages.
double expected(const Choice& choice, const Passes& passes) {
  const double one = passes.total() / static_cast<double>(choice.pipe);
  return one * static_cast<double>(choice.microbatches) +
         search::bubble_seconds(choice, passes, passes.total(), {one});
}

Schedule schedule_of(const Choice& choice, Costs costs, double transfer = 0) {
  ScheduleOptions options{.name = choice.schedule,
                          .stages = static_cast<int>(choice.pipe),
                          .microbatches = static_cast<int>(choice.microbatches),
                          .chunks = static_cast<int>(choice.chunks)};
  options.forward = costs.forward;
  options.backward = costs.backward;
  options.wgrad = costs.weights;
  options.transfer = transfer;
  return make_schedule(options);
}

// Calls f for all numbers of stages, microbatches and chunks for which the schedule exists.
template <class F>
void each(const std::string& name, F f) {
  for (const int64_t stages : {2, 3, 4, 8, 16}) {
    for (const int64_t microbatches : {stages / 2, stages, stages + 1, 2 * stages, 4 * stages}) {
      for (const int64_t chunks : {1, 2, 3}) {
        if (default_chunks(name) > 1 && chunks == 1) continue;
        if (!schedule_exists(name, int(stages), int(microbatches), int(chunks))) continue;
        f(pipeline(name, stages, microbatches, chunks));
      }
    }
  }
}

}  // namespace

TEST_CASE("predicted steps of schedules with fixed orders are exact for homogeneous stages") {
  for (const auto& costs : kCosts) {
    for (const double transfer : {0.0, 0.05, 0.3}) {
      for (const char* name : {"gpipe", "1f1b", "eager_1f1b", "interleaved", "looped_bfs"}) {
        each(name, [&](const Choice& choice) {
          const auto found = schedule_of(choice, costs, transfer).makespan;
          CAPTURE(name, choice.pipe, choice.microbatches, choice.chunks, costs.backward, transfer);
          CHECK(expected(choice, passes_of(costs, choice.pipe, transfer)) == Approx(found));
        });
      }
    }
  }
}

TEST_CASE("predicted steps are within 12% where messages take longer than ops") {
  for (const char* name : {"1f1b", "eager_1f1b", "looped_bfs", "zb1p", "zb2p"}) {
    each(name, [&](const Choice& choice) {
      const Costs costs{1, 1, 1};
      const auto found = schedule_of(choice, costs, 2).makespan;
      CAPTURE(name, choice.pipe, choice.microbatches, choice.chunks);
      CHECK(expected(choice, passes_of(costs, choice.pipe, 2)) == Approx(found).epsilon(0.12));
    });
  }
}

TEST_CASE("the predicted step is a lower bound of searched schedules with split backward passes") {
  struct Tightness {
    const char* name;
    double most;  // found step / predicted step
  };
  for (const auto& [name, most] :
       {Tightness{"zb1p", 1.02}, Tightness{"zb2p", 1.001}, Tightness{"dualpipe_v", 1.05},
        Tightness{"zbv", 1.2}, Tightness{"v_half", 1.35}, Tightness{"v_min", 1.5}}) {
    double worst = 1;
    for (const auto& costs : kCosts) {
      for (const double transfer : {0.0, 0.05}) {
        each(name, [&](const Choice& choice) {
          const auto found = schedule_of(choice, costs, transfer).makespan;
          const double least = expected(choice, passes_of(costs, choice.pipe, transfer));
          CAPTURE(name, choice.pipe, choice.microbatches, costs.backward, transfer);
          CHECK(found >= least * (1 - 1e-9));
          worst = std::max(worst, found / least);
        });
      }
    }
    CAPTURE(name, worst);
    CHECK(worst <= most);
    // The bound exceeds the trivial one, the work of a stage.
    const auto choice = pipeline(name, 8, 16, default_chunks(name));
    if (std::string(name) != "zb2p")
      CHECK(expected(choice, passes_of({1, 2, 1}, 8, 0)) > 16 * 4 + 1);
  }
}

TEST_CASE("searched orders that exceed the bound are predicted by a search") {
  search::SearchedOrders orders;
  for (const char* name : {"zbv", "v_half", "v_min"}) {
    for (const auto& costs : kCosts) {
      const std::vector<double> listed{costs.forward, costs.backward, costs.weights, 0};
      for (const double transfer : {0.0, 0.3}) {
        auto with = listed;
        with.back() = transfer;
        each(name, [&](const Choice& choice) {
          const auto passes = passes_of(costs, choice.pipe, transfer);
          CAPTURE(name, choice.pipe, choice.microbatches, costs.backward, transfer);
          CHECK(expected(choice, passes) + orders.excess(choice, passes, with) ==
                Approx(schedule_of(choice, costs, transfer).makespan));
        });
      }
      // Larger counts are extrapolated from smaller ones.
      for (const auto& [stages, microbatches] : {std::pair(8, 64), {24, 48}, {32, 64}}) {
        const auto choice = pipeline(name, stages, microbatches, 2);
        const auto passes = passes_of(costs, stages, 0);
        CAPTURE(name, stages, microbatches, costs.backward);
        CHECK(expected(choice, passes) + orders.excess(choice, passes, listed) ==
              Approx(schedule_of(choice, costs).makespan).epsilon(0.08));
      }
    }
  }
  const auto choice = pipeline("zb1p", 4, 8, 1);
  CHECK(orders.excess(choice, passes_of({1, 1, 1}, 4, 0), {1, 1, 1, 0}) == 0);
}

TEST_CASE("no schedule has more microbatches in flight than the model counts") {
  for (const auto& name : schedule_names()) {
    each(name, [&](const Choice& choice) {
      const auto schedule = schedule_of(choice, {1, 1.25, 0.75});
      CAPTURE(name, choice.pipe, choice.microbatches, choice.chunks);
      double most = 0;
      for (int s = 0; s < schedule.stages; ++s) {
        const double counted = search::in_flight(choice, schedule.stages - 1 - s);
        CHECK(schedule.peak_in_flight[s] <= counted + 1e-9);
        most = std::max(most, counted - schedule.peak_in_flight[s]);
      }
      // The model counts up to one part more where parts share a frame. Searched schedules may stay
      // below their cap.
      if (!splits_backward(name))
        CHECK(most <= (choice.chunks > 1 ? 1.0 / choice.chunks : 0) + 1e-9);
    });
  }
}

TEST_CASE("the predicted step does not fall as the slowest stage gets slower") {
  for (const auto& name : schedule_names()) {
    each(name, [&](const Choice& choice) {
      const auto passes = passes_of({1, 1.25, 0.75}, choice.pipe, 0.2);
      const double even = passes.total() / static_cast<double>(choice.pipe);
      double before = 0;
      for (const double longest : {1.0, 1.01, 1.2, 2.0}) {
        const double step = even * longest * static_cast<double>(choice.microbatches) +
                            search::bubble_seconds(choice, passes, passes.total(),
                                                   {even * longest});
        CAPTURE(name, choice.pipe, choice.microbatches, longest);
        CHECK(step >= before * (1 - 1e-12));
        before = step;
      }
    });
  }
}
