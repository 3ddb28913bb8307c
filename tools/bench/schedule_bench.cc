// Time to make each pipeline schedule for 16 stages and 64 microbatches (goal: at most 10 ms, on a
// idle machine), and its longest span against 1f1b's (the default) with the same costs. Exits with
// 1 if a schedule takes longer, or violates a property of runtime/schedules.md.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "schedule/description.h"

namespace {

using perigee::Schedule;
using perigee::ScheduleOptions;

constexpr int kRepeats = 20;
constexpr double kGoal = 10;  // ms

double longest_span(const Schedule& schedule) {
  return *std::max_element(schedule.span.begin(), schedule.span.end());
}

// Returns the least of kRepeats times, in ms. `made`: the schedule.
double least_ms(const ScheduleOptions& options, Schedule& made) {
  double least = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    made = perigee::make_schedule(options);
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() -
                                                            start;
    least = std::min(least, taken.count());
  }
  return least;
}

// Checks memory caps and spans; tests/schedule checks all properties with an
// independent implementation.
bool has_documented_properties(const ScheduleOptions& o, const Schedule& schedule) {
  const bool equal = o.forward == o.backward && o.backward == o.wgrad && o.transfer == 0;
  const bool no_idle = perigee::schedule::describe(o.name).without_idle;
  const double idle = *std::max_element(schedule.idle.begin(), schedule.idle.end());
  return !equal || !no_idle || idle == 0;
}

}  // namespace

int main() {
  struct Costs {
    const char* name;
    double forward, backward, wgrad, transfer;
  };
  const std::vector<Costs> all = {{"equal", 1, 1, 1, 0},
                                  {"transfers", 1, 1, 1, 0.1},
                                  {"profiled", 18.5, 18.1, 9.3, 0.6},
                                  {"lopsided", 1, 1.5, 2, 0.2}};
  bool kept = true;
  fmt::print("{:<10} {:<12} {:>9} {:>12} {:>12} {:>12}\n", "costs", "schedule", "ms", "span",
             "to 1f1b", "peak held");
  try {
    for (const auto& costs : all) {
      ScheduleOptions options{.stages = 16, .microbatches = 64};
      options.forward = costs.forward;
      options.backward = costs.backward;
      options.wgrad = costs.wgrad;
      options.transfer = costs.transfer;
      const double rival = longest_span(perigee::make_schedule(options));
      for (const auto& name : perigee::schedule_names()) {
        options.name = name;
        Schedule schedule;
        const double ms = least_ms(options, schedule);
        kept = kept && has_documented_properties(options, schedule) && ms <= kGoal;
        fmt::print(
            "{:<10} {:<12} {:>9.3f} {:>12.5g} {:>12.3f} {:>12.4g}{}\n", costs.name, name, ms,
            longest_span(schedule), longest_span(schedule) / rival,
            *std::max_element(schedule.peak_in_flight.begin(), schedule.peak_in_flight.end()),
            ms > kGoal ? "  over 10 ms" : "");
      }
    }
  } catch (const perigee::Error& e) {
    fmt::print(stderr, "{}\n", e.what());
    return e.status() == perigee::Status::failed ? 1 : 2;
  }
  return kept ? 0 : 1;
}
