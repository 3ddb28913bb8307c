// Pipeline schedules: in which order each stage runs the forward and backward sections of its
// microbatches.
//
// A pipeline cuts the model into stages * chunks parts. A schedule orders the ops of every stage;
// when an op starts follows from the orders, the dependencies and the costs (earliest start). Times
// are in the unit of the costs. Formats: runtime/README.md section 5.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace perigee {

// The sections that a schedule orders. A part's backward pass for one microbatch is either one
// `backward`, or `input_grad` and later `weight_grad` (zero bubble's split). Both backward and
// input_grad print as "B".
enum class PipelineKind : unsigned char { forward, backward, input_grad, weight_grad };

struct PipelineOp {
  PipelineKind kind = PipelineKind::forward;
  int microbatch = 0;
  int chunk = 0;

  bool operator==(const PipelineOp&) const = default;
};

struct ScheduleOptions {
  std::string name = "1f1b";  // one of schedule_names()
  int stages = 1;
  int microbatches = 1;
  std::optional<int>
      chunks;  // per stage; default 2 for interleaved, looped_bfs and the V schedules, else 1
  std::optional<int>
      group;      // interleaved: microbatches that run through a chunk together; default stages
  int extra = 0;  // 1f1b: forwards in flight above what 1f1b has
  // Of schedules that do not split backward passes: they do, in the same order; weight gradients
  // are computed where a stage would wait, or where its memory, as without that, asks for it.
  bool delay_weights = false;
  double forward = 1;   // time of a whole stage for one microbatch; a chunk takes 1/chunks of it
  double backward = 1;  // the same for the input gradient
  double wgrad = 1;     // the same for the weight gradient
  double transfer = 0;  // between the end of a part and the start of its neighbour on another stage
  std::optional<double> memory_limit;  // highest peak_in_flight allowed on any stage
};

struct Schedule {
  std::string name;
  int stages = 0;
  int microbatches = 0;
  int chunks = 0;
  std::vector<std::vector<PipelineOp>> orders;  // [stage][position]
  std::vector<std::vector<double>>
      start;                 // [stage][position], earliest; the first op of stage 0 starts at 0
  double makespan = 0;       // latest end, counted from 0
  std::vector<double> span;  // [stage] last end - first start
  std::vector<double> idle;  // [stage] span - busy
  std::vector<double>
      peak_in_flight;  // [stage] most activations held, in microbatches of a whole stage
  std::vector<std::vector<int>> parts;  // [stage][chunk] the model's part, 0 .. stages*chunks-1
  double bubble_ratio = 0;              // 1 - busy / (stages * makespan)
};

// Returns the names of all schedules, in the order of runtime/README.md section 5.
std::span<const std::string> schedule_names();

// Returns how many chunks a stage has by that schedule where nothing else is asked for.
int default_chunks(std::string_view name);

// Returns whether a backward pass of that schedule is two ops, of which weight_grad comes later.
bool splits_backward(std::string_view name);

// Returns whether make_schedule has that schedule for these counts, without a group.
bool schedule_exists(std::string_view name, int stages, int microbatches, int chunks);

// Returns the most microbatches of a whole stage that a schedule which splits backward passes may
// have in flight (Schedule::peak_in_flight).
double memory_cap(std::string_view name, int stages);

// Returns the stage of each part of the model by that schedule.
std::vector<int> stage_of_parts(std::string_view name, int stages, int chunks);

// Returns the schedule `options.name` for the counts. Its orders hold every op once: forward and
// backward of each microbatch and chunk, and a weight_grad for each input_grad. zb1p, zb2p, zbv,
// v_half, v_min and dualpipe_v are found by a search under their memory cap (and memory_limit,
// where that is lower) that minimises the longest span, then the makespan; the same options give
// the same schedule. The others are fixed orders. Throws Error (invalid) for an unknown name,
// counts the schedule does not exist for (the message says for which it does), options it does not
// have, costs that are negative or not finite, and a memory limit it cannot keep.
Schedule make_schedule(const ScheduleOptions& options);

// Returns the JSON text of runtime/README.md section 5 ("perigee.schedule/1"), ending in a newline.
std::string to_json(const Schedule& schedule);

// Returns a time line for people, one row per stage, and a summary. "F3" is the forward of
// microbatch 3 in chunk 0, "f3" in chunk 1; from three chunks on "F3.2" names the chunk.
std::string to_text(const Schedule& schedule);

// Returns the op as in JSON: "F3.0".
std::string to_text(const PipelineOp& op);

}  // namespace perigee
