// The description of a pipeline schedule: everything that differs between schedules. The table of
// them is table.cc; no other code compares a schedule's name, it asks the description.
//
// To add a schedule: write its orders in a file of its own (or reuse fixed.h, search.h), give them
// a row in table.cc, and add its bubble to bubble.h where it has a closed form.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/shape.h"

namespace perigee::schedule {

// The schedule of plans and jobs that name none.
inline constexpr std::string_view kDefaultSchedule = "1f1b";

// Which stage a part of the model runs on.
enum class Placement : unsigned char {
  round_robin,  // part k on stage k % stages
  v_shape,  // two parts a stage: the first half of the parts down the stages, the second back up
};

// A pipeline of identical parts (stages * chunks of them). Seconds are of one part and one
// microbatch where nothing else is said.
struct PipelineTimes {
  double stages = 1, chunks = 1, microbatches = 1;
  double forward = 0;
  double backward = 0;                  // gradients of inputs, recomputation included
  double weights = 0;                   // gradients of weights
  double recomputed = 0;                // of backward: can run before the gradient arrives
  double transfer = 0;                  // of a message between two stages
  double all_stages = 0;                // of a microbatch: its passes on all stages
  double slowest = 0;                   // of a microbatch: its passes on the slowest stage
  std::optional<double> slowest_stage;  // its position, where it is known
  // Split backward passes: seconds by which the orders of an identical pipeline that a search finds
  // exceed the lower bound.
  double search_excess = 0;

  double pass() const { return forward + backward + weights; }
  // From the start of a part's forward (backward) pass to the next part's.
  double forward_hop() const { return forward + transfer; }
  double backward_hop() const {
    return (backward > recomputed ? backward - recomputed : 0.0) + transfer;
  }
  // Seconds by which a microbatch's passes on the average stage are shorter than on the slowest.
  double slack() const {
    const double slack = slowest - chunks * pass();
    return slack > 0 ? slack : 0.0;
  }
};

// The pipeline and stage whose in-flight microbatches are counted.
struct FlightCounts {
  double stages = 1, chunks = 1, microbatches = 1;
  double later_stages = 0;
};

struct Description {
  std::string name;                  // as in jobs and plans
  std::vector<std::string> aliases;  // names in papers and other systems; errors name the schedule
  std::string summary;               // one line
  std::string source;                // paper or system
  std::string requirement = {};      // counts it requires; "": exists for all

  Placement placement = Placement::round_robin;
  bool free_chunks = false;      // any number of parts a stage; else 2 (v_shape) or 1
  bool splits_backward = false;  // a backward pass is an input_grad and a later weight_grad
  bool in_rounds = false;      // stages run a chunk for several microbatches before the next chunk
  bool searched = false;       // the orders come from search.h, else from a fixed rule
  bool has_group = false;      // ScheduleOptions::group
  bool has_extra = false;      // ScheduleOptions::extra
  bool without_idle = false;   // no stage idles with equal costs and no transfers
  bool exceeds_bound = false;  // the orders found stay above `bubble_seconds`: search to predict it
  bool suggested = false;      // the advice of `perigee simulate` tries it

  // Schedules with warm-up forwards, then alternately one backward and one forward: the number by
  // which in-flight microbatches grow with each later stage, from 1 on the last one. Others: 0.
  int flight_slope = 0;
  bool warms_up = false;   // the orders are warm_up_then_alternate()'s
  bool holds_all = false;  // every stage has all microbatches in flight
  // V-shaped: most in-flight microbatches of the first stage's second part.
  int second_part_in_flight = 0;
  // A schedule that never takes more time or memory than this one where both exist; the search then
  // leaves this one out. "": none.
  std::string dominated_by = {};

  // Whether the schedule exists for these counts, without a group. nullptr: for all.
  bool (*exists)(int stages, int microbatches) = nullptr;
  // Split backward passes: most in-flight microbatches of a whole stage. nullptr: no cap.
  double (*flight_cap)(int stages) = nullptr;
  // In-flight microbatches of a stage, in microbatches of a whole stage; exact for fixed orders,
  // an upper bound for searched ones; may exceed the number of microbatches.
  double (*in_flight)(const FlightCounts& counts) = nullptr;
  // Seconds of a step beyond slowest * microbatches. Exact for identical stages where the orders
  // are fixed, else a lower bound of any order.
  double (*bubble_seconds)(const PipelineTimes& times) = nullptr;
  // The orders. Throws Error (invalid) where they do not exist for the options.
  Orders (*orders)(const Description& schedule, const ScheduleOptions& options,
                   const Shape& shape) = nullptr;

  int default_chunks() const { return placement == Placement::v_shape || free_chunks ? 2 : 1; }
  bool exists_for(int stages, int microbatches, int chunks) const {
    if (!free_chunks && chunks != default_chunks()) return false;
    return exists == nullptr || exists(stages, microbatches);
  }
};

// Returns all schedules in the order of runtime/schedules.md.
std::span<const Description> descriptions();

// Returns the description of a schedule. Throws Error (invalid) for an unknown name, with the
// nearest or the schedule of which it is an alias.
const Description& describe(std::string_view name);

// Returns nullptr for an unknown name.
const Description* find_description(std::string_view name);

// Returns the names of the schedules with a property, as "A, B and C".
std::string names_where(bool (*has)(const Description&));

// Returns the schedule by that description, which need not be in the
// table. See perigee::make_schedule.
Schedule make_schedule(const Description& description, const ScheduleOptions& options);

}  // namespace perigee::schedule
