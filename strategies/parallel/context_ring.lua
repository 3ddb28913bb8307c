-- Ring attention: each rank has a part of every sequence; keys and values are passed around the
-- ranks, so that no rank ever holds all of them. Under a causal mask a part consists of one piece
-- from the start of the sequence and one from its end, which balances the work of the ranks.
-- When to use it: sequences so long that the keys and values of one layer do not fit on a device.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "context", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.context_parallel { attention = "ring" },
}
