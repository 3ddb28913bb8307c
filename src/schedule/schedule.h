// Pipeline schedules: the order in which each stage runs the forward and backward passes
// of its microbatches.
//
// A pipeline cuts the model into stages * chunks parts. A schedule orders the ops of every
// stage; the start of an op follows from the orders, the dependencies and the costs
// (earliest start). Times are in the unit of the costs. What differs between schedules:
// description.h. Formats: runtime/schedules.md.
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
  // Parts per stage; default: default_chunks(name).
  std::optional<int> chunks;
  // interleaved: microbatches that run through a chunk together; default: stages.
  std::optional<int> group;
  int extra = 0;  // 1f1b: in-flight microbatches beyond those of plain 1f1b
  // Splits the backward passes of a schedule that does not, in the same order: weight gradients are
  // computed where a stage would idle, or where the memory of the unsplit schedule requires it.
  bool delay_weights = false;
  // Times of a whole stage for one microbatch; a chunk takes 1/chunks of it.
  double forward = 1;
  double backward = 1;  // input gradient
  double wgrad = 1;     // weight gradient
  double transfer = 0;  // from the end of a part to the start of its neighbour on another stage
  std::optional<double> memory_limit;  // highest peak_in_flight allowed on any stage
};

struct Schedule {
  std::string name;
  int stages = 0;
  int microbatches = 0;
  int chunks = 0;
  std::vector<std::vector<PipelineOp>> orders;  // [stage][position]
  // [stage][position], earliest; the first op of stage 0 starts at 0.
  std::vector<std::vector<double>> start;
  double makespan = 0;       // latest end
  std::vector<double> span;  // [stage] last end - first start
  std::vector<double> idle;  // [stage] span - busy
  // [stage] most in-flight microbatches of a whole stage.
  std::vector<double> peak_in_flight;
  std::vector<std::vector<int>> parts;  // [stage][chunk] part of the model, 0 .. stages*chunks-1
  double bubble_ratio = 0;              // 1 - busy / (stages * makespan)
};

// Returns the names of all schedules, in the order of runtime/schedules.md.
std::span<const std::string> schedule_names();

// Returns the chunks of a stage where ScheduleOptions::chunks is not given.
int default_chunks(std::string_view name);

// Returns whether a backward pass is an input_grad and a later weight_grad.
bool splits_backward(std::string_view name);

// Returns whether the schedule exists for these counts, without a group.
bool schedule_exists(std::string_view name, int stages, int microbatches, int chunks);

// Returns the most microbatches of a whole stage that a schedule which splits backward passes may
// have in flight (Schedule::peak_in_flight).
double memory_cap(std::string_view name, int stages);

// Returns the stage of each part of the model.
std::vector<int> stage_of_parts(std::string_view name, int stages, int chunks);

// Returns the schedule `options.name` for the counts. Its orders have every op once: forward and
// backward of each microbatch and chunk, and a weight_grad for each input_grad. Searched schedules
// (Description::searched) keep their cap of in-flight microbatches, and memory_limit where that is
// lower; the search minimises the longest span, then the makespan, and is deterministic. Throws
// Error (invalid) for an unknown name, counts that the schedule does not exist for (the message
// names those that it exists for), options that it does not have, costs that are negative or not
// finite, and a memory limit that it cannot keep.
Schedule make_schedule(const ScheduleOptions& options);

// Returns the JSON text of runtime/schedules.md ("perigee.schedule/1"), ending in a newline.
std::string to_json(const Schedule& schedule);

// Returns a readable time line, one row per stage, and a summary. "F3" is the forward of
// microbatch 3 in chunk 0, "f3" in chunk 1; from three chunks on "F3.2" names the chunk.
std::string to_text(const Schedule& schedule);

// Returns the op as in JSON: "F3.0".
std::string to_text(const PipelineOp& op);

}  // namespace perigee
