// `perigee sample`: text from a language model.
#pragma once

#include <functional>
#include <string_view>

#include "train/run/rank_session.h"
#include "train/task/task.h"

namespace perigee::train {

// Generates options.tokens tokens after each prompt. All ranks call it; rank 0 prints a single prompt
// and its text as they are made, several ones with a heading each when all are complete. Throws Error
// for a model without the input "tokens" and the result "logits".
void sample_text(const Task& task, RankSession& session, const SampleOptions& options,
                 const std::function<void(std::string_view)>& print);

}  // namespace perigee::train
