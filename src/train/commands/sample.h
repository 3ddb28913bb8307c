// `perigee sample`: text from a language model.
#pragma once

#include <functional>
#include <string_view>

#include "train/task/task.h"

namespace perigee::train {

// Generates options.tokens tokens after each prompt on one rank. A single prompt and its text are
// printed as they are made, several ones with a heading each when all are complete. Throws Error for
// a model without the input "tokens" and the result "logits".
void sample_text(const Task& task, const SampleOptions& options,
                 const std::function<void(std::string_view)>& print);

}  // namespace perigee::train
