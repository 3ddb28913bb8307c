-- Context parallelism: each rank has a part of every sequence, through attention too, which gathers
-- keys and values.
-- When to use it: long sequences with few heads for keys and values, of which an all-gather moves
-- little.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "context", 2 }, { "data", 1 } },  -- data takes the ranks that are left
  m.context_parallel {},
}
