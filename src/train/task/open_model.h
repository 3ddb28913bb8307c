// From a task to its complete job and its model.
#pragma once

#include <memory>

#include "job/job.h"
#include "train/task/source.h"
#include "train/task/task.h"

namespace perigee::train {

// Returns the task's job with the keys that only a library of the torch part can fill: the
// vocabulary of a tokenizer, and the batch that a model's script declares.
job::Job completed(const Task& task);

// Returns the job's model with an example of its batch. Throws Error where it cannot be loaded.
std::shared_ptr<const ModelSource> open_model(const Task& task);

}  // namespace perigee::train
