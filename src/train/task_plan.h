// From a command's task to the plan of its job: the model, the strategy, and what is foretold.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "compile/compile.h"
#include "job/job.h"
#include "methods/method.h"
#include "train/host.h"
#include "train/planning.h"

namespace perigee::train {

// Returns the task's job with what only LibTorch's side can know: the vocabulary of a SentencePiece
// tokenizer, and what a model's script says of its batch.
job::Job completed(const Task& task);

// Returns the job's model with an example of its batch. Throws Error where it cannot be loaded.
std::shared_ptr<const Source> open_model(const Task& task);

// Makes the plan by the task's strategy, or takes this one (JSON). `foretold`: World::foretold.
Planned plan_task(const Task& task, const std::string& plan_text = "", bool foretold = false);

// Returns the text of the plan that a resumed run has left. Throws Error where it is no plan.
std::string read_own_plan(const std::string& file);

// Fits the plan to its budget of memory and fills its prediction from recorded traces; what was
// never recorded is estimated and marked so. Returns the programs of all ranks.
compile::Programs predict(plan::Plan& plan, const graph::Graph& graph, const job::Job& job,
                          compile::TraceSource& traces);
// Runs f(plan) for the plan that was made. What it throws stands at the place of the method that
// brought it about (methods::check_methods), which calls f for plans without some of the methods.
void at_methods(const Planned& planned, const std::function<void(plan::Plan)>& f);
// Returns the methods that the plan was made of, and for what in `request`, whose graph is none;
// nullptr where it is of no list of methods.
const methods::Strategy* methods_of(const Planned& planned, methods::Request& request);
// Predicts from what is recorded for the job's device. Throws Error where cluster.file describes
// devices that have less memory than the plan needs.
void predict_known(Planned& planned, const job::Job& job, const std::string& runtime_folder);

// Throws Error where this machine, of whose devices or memory `local_ranks` ranks have a part, has
// less memory than the plan needs: by how much, and which changes would do (train/advice.h). `plan`
// is the planned one, with its prediction.
void check_memory_here(const Planned& planned, const plan::Plan& plan, int64_t local_ranks,
                       const std::string& runtime_folder);

// Returns which changes would make a step shorter (train/advice.h), where the task asks for it.
std::string advice_of(const Planned& planned, const Task& task);

// Returns the plan as a page; its recompute regions are chosen.
std::string page_of(const Planned& planned, const job::Job& job, const std::string& runtime_folder);

}  // namespace perigee::train
