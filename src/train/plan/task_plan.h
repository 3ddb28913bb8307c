// From a task to the plan of its job, with the memory check, the advice and the page about it.
#pragma once

#include <string>
#include <vector>

#include "compile/compile.h"
#include "cost/op_time.h"
#include "job/job.h"
#include "plan/plan.h"
#include "train/plan/make_plan.h"
#include "train/task/task.h"

namespace perigee::train {

// Makes the plan by the task's strategy, or takes the plan in `plan_text` (JSON).
// `for_described_cluster`: World::for_described_cluster.
PlannedJob plan_task(const Task& task, const std::string& plan_text = "",
                     bool for_described_cluster = false);

// Returns the text of the plan file of a resumed run. Throws Error where it holds no plan.
std::string read_resumed_plan(const std::string& file);

// Predicts the plan's memory from the traces recorded for the job's device. `chooses_products`: also
// sets Plan::products by recorded times. Throws Error where cluster.file describes devices that have
// less memory than the plan needs.
void predict_recorded(PlannedJob& planned, const job::Job& job, const std::string& runtime_folder,
                      bool chooses_products);

// Throws Error where this machine has less memory than `local_ranks` ranks of the plan need, each
// with its copy of a checkpoint (`checkpoint_bytes`, by rank; empty: none). The message has the
// excess and the changes that would make the plan fit (train/plan/advice.h). `plan` is that of
// `planned`, with its prediction.
void check_memory_here(const PlannedJob& planned, const plan::Plan& plan, int64_t local_ranks,
                       const std::vector<int64_t>& checkpoint_bytes,
                       const std::string& runtime_folder);

// Returns which changes would make a step shorter (train/plan/advice.h); "" where the task does not
// ask for advice.
std::string advice_of(const PlannedJob& planned, const Task& task);

// A plan and what was made of it.
struct CompiledPlan {
  const PlannedJob& planned;
  const plan::Plan& plan;  // that of `planned`, with its recomputed regions and its prediction
  const compile::Programs& programs;
  cost::Measurements& times;  // of the job's device
};

// Returns the plan as an HTML page. The second form compiles the plan of `planned`, whose recomputed
// regions are chosen.
std::string page_of(const CompiledPlan& compiled, const std::string& runtime_folder);
std::string page_of(const PlannedJob& planned, const std::string& runtime_folder);

}  // namespace perigee::train
