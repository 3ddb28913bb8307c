// `perigee serve`: a language model behind OpenAI's API.
#pragma once

#include "train/task/task.h"

namespace perigee::train {

// Answers requests on one rank until io.ended() returns true: those that are open then are
// cancelled. Throws Error where the model, the port or the token is wrong, or the model fails.
void serve(const Task& task, const ServeOptions& options, const ServeIo& io);

}  // namespace perigee::train
