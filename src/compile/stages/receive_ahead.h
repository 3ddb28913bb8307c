// Messages of a pipeline that are received early.
#pragma once

#include "compile/draft/draft.h"

namespace perigee::compile {

// With a pipeline: receives messages into memory of their own, before the run that precedes the run
// that needs them.
void receive_ahead(Draft& draft);

// Puts all messages of a stage that are received early into one frame with two
// copies (double buffering).
void share_receive_buffers(Draft& draft);

}  // namespace perigee::compile
