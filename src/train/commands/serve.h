// `perigee serve`: a language model behind OpenAI's API.
#pragma once

#include "train/run/rank_session.h"
#include "train/task/task.h"

namespace perigee::train {

// Answers requests until io.ended() returns true: those that are open then are cancelled. All ranks
// call it; rank 0 has the server and uses `io`. Throws Error where the model, the port or the token
// is wrong, or the model fails.
void serve(const Task& task, RankSession& session, const ServeOptions& options, const ServeIo& io);

}  // namespace perigee::train
