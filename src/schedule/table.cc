// The table of pipeline schedules. Formats: runtime/schedules.md.
#include <algorithm>
#include <array>

#include "base/fail.h"
#include "schedule/bubble.h"
#include "schedule/description.h"
#include "schedule/fixed.h"
#include "schedule/search/search.h"

namespace perigee::schedule {
namespace {

double all_microbatches(const FlightCounts& counts) { return counts.microbatches; }

template <int slope>
double sloping_flight(const FlightCounts& counts) {
  return slope * counts.later_stages + 1;
}

double interleaved_flight(const FlightCounts& counts) {
  return ((counts.chunks - 1) * counts.stages + 2 * counts.later_stages + 1) / counts.chunks;
}

template <int slope>
double sloping_bubble(const PipelineTimes& times) {
  return warm_up_bubble(times, slope);
}

// flight_cap of split backward passes, each with its in_flight and bubble_seconds.
double one_per_stage(int stages) { return stages; }
double two_per_stage(int stages) { return 2.0 * stages; }
double half_per_stage_and_one(int stages) { return stages / 2.0 + 1; }
double half_per_stage(int stages) { return stages / 2.0; }
double one_per_stage_and_one(int stages) { return stages + 1; }

template <double (*cap)(int)>
double capped_flight(const FlightCounts& counts) {
  return cap(static_cast<int>(counts.stages));
}

template <double (*cap)(int)>
double capped_bubble(const PipelineTimes& times) {
  return split_bubble(times, cap(static_cast<int>(times.stages)));
}

bool v_min_exists(int stages, int /*microbatches*/) { return stages >= 4; }

Orders v_min_orders(const Description& schedule, const ScheduleOptions& o, const Shape& shape) {
  if (!v_min_exists(o.stages, o.microbatches)) {
    fail("schedule", "v_min exists for at least 4 stages, but got {}", o.stages);
  }
  return searched_orders(schedule, o, shape);
}

bool dualpipe_v_exists(int stages, int microbatches) { return microbatches >= 2 * stages; }

Orders dualpipe_v_orders(const Description& schedule, const ScheduleOptions& o,
                         const Shape& shape) {
  if (!dualpipe_v_exists(o.stages, o.microbatches)) {
    fail("schedule", "dualpipe_v with {} stages exists for at least {} microbatches, but got {}",
         o.stages, 2 * o.stages, o.microbatches);
  }
  return join_backwards(shape, searched_orders(schedule, o, shape));
}

const std::array<Description, 11> kTable = {{
    {.name = "gpipe",
     .aliases = {"fill_drain", "GPipe"},
     .summary = "all forwards, then all backwards",
     .source = "Huang et al. 2019, GPipe",
     .warms_up = true,
     .holds_all = true,
     .dominated_by = "eager_1f1b",
     .in_flight = all_microbatches,
     .bubble_seconds = fill_and_drain_bubble,
     .orders = warm_up_then_alternate},
    {.name = "1f1b",
     .aliases = {"pipedream_flush", "1F1B"},
     .summary =
         "after a warm-up, alternately one backward and one forward; in flight: one microbatch "
         "more than later stages",
     .source = "Narayanan et al. 2021, PipeDream-2BW (PipeDream-Flush)",
     .has_extra = true,
     .suggested = true,
     .flight_slope = 1,
     .warms_up = true,
     .in_flight = sloping_flight<1>,
     .bubble_seconds = sloping_bubble<1>,
     .orders = warm_up_then_alternate},
    {.name = "interleaved",
     .aliases = {"interleaved_1f1b", "vpp"},
     .summary = "1f1b over several chunks per stage, in groups of microbatches",
     .source = "Narayanan et al. 2021, Megatron-LM",
     .requirement = "a multiple of `stages` microbatches, or a group",
     .free_chunks = true,
     .in_rounds = true,
     .has_group = true,
     .suggested = true,
     .exists = [](int stages, int microbatches) { return microbatches % stages == 0; },
     .in_flight = interleaved_flight,
     .bubble_seconds = interleaved_bubble,
     .orders = interleaved},
    {.name = "eager_1f1b",
     .aliases = {"1f1b_overlap_friendly"},
     .summary = "1f1b with twice the warm-up, which leaves messages the time of a microbatch",
     .source = "Zhuang et al. 2023, On Optimizing the Communication of Model Parallelism (Alpa)",
     .flight_slope = 2,
     .warms_up = true,
     .in_flight = sloping_flight<2>,
     .bubble_seconds = sloping_bubble<2>,
     .orders = warm_up_then_alternate},
    {.name = "zb1p",
     .aliases = {"zb_h1", "ZB-H1", "ZB-1p"},
     .summary = "split backward passes, as many in flight as 1f1b",
     .source = "Qi et al. 2023, Zero Bubble Pipeline Parallelism",
     .splits_backward = true,
     .searched = true,
     .suggested = true,
     .flight_cap = one_per_stage,
     .in_flight = capped_flight<one_per_stage>,
     // At the cap a stage waits once for its messages, which 1f1b does in each round.
     .bubble_seconds =
         [](const PipelineTimes& times) { return split_bubble(times, times.stages, true); },
     .orders = searched_orders},
    {.name = "zb2p",
     .aliases = {"zb_h2", "ZB-H2", "ZB-2p"},
     .summary = "split backward passes, twice as many in flight as 1f1b",
     .source = "Qi et al. 2023, Zero Bubble Pipeline Parallelism",
     .splits_backward = true,
     .searched = true,
     .without_idle = true,
     .flight_cap = two_per_stage,
     .in_flight = capped_flight<two_per_stage>,
     .bubble_seconds = capped_bubble<two_per_stage>,
     .orders = searched_orders},
    {.name = "zbv",
     .aliases = {"zb_v", "ZB-V"},
     .summary = "split backward passes, two chunks in V shape, as many in flight as 1f1b",
     .source = "Qi et al. 2023, Zero Bubble Pipeline Parallelism",
     .placement = Placement::v_shape,
     .splits_backward = true,
     .searched = true,
     .without_idle = true,
     .exceeds_bound = true,
     .second_part_in_flight = 2,
     .flight_cap = one_per_stage,
     .in_flight = capped_flight<one_per_stage>,
     .bubble_seconds = capped_bubble<one_per_stage>,
     .orders = searched_orders},
    {.name = "v_half",
     .aliases = {"V-Half"},
     .summary = "zbv with half as many microbatches in flight",
     .source = "Qi et al. 2024, Pipeline Parallelism with Controllable Memory",
     .placement = Placement::v_shape,
     .splits_backward = true,
     .searched = true,
     .exceeds_bound = true,
     .second_part_in_flight = 2,
     .flight_cap = half_per_stage_and_one,
     .in_flight = capped_flight<half_per_stage_and_one>,
     .bubble_seconds = capped_bubble<half_per_stage_and_one>,
     .orders = searched_orders},
    {.name = "v_min",
     .aliases = {"V-Min"},
     .summary = "zbv with the fewest microbatches in flight",
     .source = "Qi et al. 2024, Pipeline Parallelism with Controllable Memory",
     .requirement = "4 stages",
     .placement = Placement::v_shape,
     .splits_backward = true,
     .searched = true,
     .exceeds_bound = true,
     .second_part_in_flight = 2,
     .exists = v_min_exists,
     .flight_cap = half_per_stage,
     .in_flight = capped_flight<half_per_stage>,
     .bubble_seconds = capped_bubble<half_per_stage>,
     .orders = v_min_orders},
    {.name = "dualpipe_v",
     .aliases = {"dualpipev", "DualPipeV"},
     .summary = "two chunks in V shape; a forward and a backward of different microbatches side by "
                "side; splits a backward pass only where another stage waits for it",
     .source = "DeepSeek-AI 2025, DualPipe (DualPipeV)",
     .requirement = "2 * stages microbatches",
     .placement = Placement::v_shape,
     .splits_backward = true,
     .searched = true,
     .second_part_in_flight = 3,
     .exists = dualpipe_v_exists,
     .flight_cap = one_per_stage_and_one,
     .in_flight = capped_flight<one_per_stage_and_one>,
     .bubble_seconds = capped_bubble<one_per_stage_and_one>,
     .orders = dualpipe_v_orders},
    {.name = "looped_bfs",
     .aliases = {"bfs", "breadth_first"},
     .summary = "all microbatches through a chunk before the next chunk, then all backwards",
     .source = "Lamy-Poirier 2023, Breadth-First Pipeline Parallelism",
     .free_chunks = true,
     .in_rounds = true,
     .holds_all = true,
     .dominated_by = "interleaved",
     .in_flight = all_microbatches,
     .bubble_seconds = looped_bfs_bubble,
     .orders = looped_bfs},
}};

}  // namespace

std::span<const Description> descriptions() { return kTable; }

const Description* find_description(std::string_view name) {
  const auto found = std::ranges::find(kTable, name, &Description::name);
  return found == kTable.end() ? nullptr : &*found;
}

const Description& describe(std::string_view name) {
  if (const auto* found = find_description(name)) return *found;
  for (const auto& schedule : kTable) {
    if (std::ranges::count(schedule.aliases, name) == 0) continue;
    fail("schedule", "unknown schedule \"{}\": it is called \"{}\" here", name, schedule.name);
  }
  fail("schedule", "unknown schedule \"{}\"{}; there are {}", name,
       did_you_mean(name, schedule_names()), fmt::join(schedule_names(), ", "));
}

std::string names_where(bool (*has)(const Description&)) {
  std::vector<std::string> names;
  for (const auto& schedule : kTable) {
    if (has(schedule)) names.push_back(schedule.name);
  }
  if (names.size() < 2) return names.empty() ? "none" : names.front();
  const auto last = names.back();
  names.pop_back();
  return fmt::format("{} and {}", fmt::join(names, ", "), last);
}

}  // namespace perigee::schedule
