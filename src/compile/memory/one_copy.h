// Frames of one copy (Frame::held_by): memory that several ranks map and write in parts.
#pragma once

#include "compile/program.h"

namespace perigee::compile {

// Throws Error where a rank of such a frame could read too early or too late what another one
// writes. A rank's own order tells the others', since all run the same program in this respect:
// - a rank writes its part (in place) after a collective of the frame's ranks that starts after the
//   last instruction that reads other parts, and is waited for;
// - it reads bytes that it does not write itself after a barrier of theirs, or another collective,
//   that starts after the last write;
// - collectives that send the frame's values have ended before the rank writes; none writes them.
// A step is replayed twice, since the next one reads what this one has written.
void verify_one_copies(const Program& program);

}  // namespace perigee::compile
