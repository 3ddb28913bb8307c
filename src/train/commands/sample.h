// `perigee sample`: text from a language model.
#pragma once

#include <functional>
#include <string_view>

#include "train/task/task.h"

namespace perigee::train {

// Generates options.tokens tokens after the prompt on one rank and prints each at once. The model
// reads the last data.sequence tokens. Throws Error for a model without the input "tokens" and the
// result "logits".
void sample_text(const Task& task, const SampleOptions& options,
                 const std::function<void(std::string_view)>& print);

}  // namespace perigee::train
