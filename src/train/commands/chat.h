// `perigee chat`: a conversation with a language model.
#pragma once

#include "train/task/task.h"

namespace perigee::train {

// Answers the messages that io.read returns, on one rank, each after all before it, as the model's
// chat template puts them. "/new" as a message begins another conversation. Where a conversation
// and its answer do not fit the model's context, its oldest messages are left out, which is said.
// Throws Error where there is no chat template, or one message alone does not fit.
void chat(const Task& task, const ChatOptions& options, const ChatIo& io);

}  // namespace perigee::train
