-- Sequence parallelism (Ulysses): each rank has a part of every sequence; an all-to-all before
-- attention gives it the whole sequence of some heads, a second one after attention restores its part.
-- When to use it: sequences whose activations do not fit on one device. Heads must divide over the
-- axis; where they do not, context_parallel gathers keys and values instead.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "sequence", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.sequence_parallel {},
}
