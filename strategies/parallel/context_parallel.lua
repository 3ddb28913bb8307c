-- Context parallelism: each rank has a part of every sequence in all layers; attention gathers keys
-- and values.
-- When to use it: long sequences with few heads for keys and values, of which an all-gather moves
-- few bytes.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "context", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.context_parallel {},
}
