// `perigee chat`: a conversation with a language model.
#pragma once

#include "train/run/rank_session.h"
#include "train/task/task.h"

namespace perigee::train {

// Answers the messages that io.read returns, each after all before it, as the model's
// chat template puts them. "/new" as a message begins another conversation. Where a conversation
// and its answer do not fit the model's context, its oldest messages are left out, and so is a
// message that does not fit alone; both are said. Throws Error where there is no chat template.
// All ranks call it; rank 0 uses `io`.
void chat(const Task& task, RankSession& session, const ChatOptions& options, const ChatIo& io);

}  // namespace perigee::train
