-- Ring attention: each rank has a part of every sequence; keys and values go round the ranks, so
-- that no rank ever holds all of them. Under a causal mask a part is a piece from the front of the
-- sequence and one from its end, which gives all ranks the same work.
-- When to use it: sequences so long that the keys and values of one layer are too much for a device.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "context", 2 }, { "data", 1 } },  -- data takes the ranks that are left
  m.context_parallel { attention = "ring" },
}
