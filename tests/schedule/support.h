// An independent reading of runtime/schedules.md: checks a schedule and evaluates hand-made
// orders. Shares no code with src/cost.
#pragma once

#include <string>
#include <vector>

#include "schedule/schedule.h"

namespace perigee::testing {

using PipelineOrders = std::vector<std::vector<PipelineOp>>;

// Returns the first violated rule, or "". Checks the placement of parts, that each op occurs once,
// dependencies, that each op starts as early as the orders allow, makespan, span, idle,
// peak in flight and the schedule's memory cap.
std::string violation(const ScheduleOptions& options, const Schedule& schedule);

// Returns the longest span of the orders under the options' costs; chunks as in the orders, V
// placement if `v_shape`.
double longest_span(const ScheduleOptions& options, int chunks, bool v_shape,
                    const PipelineOrders& orders);
double longest_span(const Schedule& schedule);

// Returns longest span - busy.
double longest_idle(const ScheduleOptions& options);

// ZB-H1 (reach 1) and ZB-H2 (reach 2) as drawn in Zero Bubble Pipeline Parallelism.
PipelineOrders zero_bubble_by_hand(int stages, int microbatches, int reach);

// Returns a stage's order as text: "F0.0 B0.0 W0.0".
std::string words(const std::vector<PipelineOp>& order);

}  // namespace perigee::testing
