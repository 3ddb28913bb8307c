-- Hierarchical context parallelism: within a node an all-to-all gives each rank some heads of the
-- node's part of the sequence; between nodes keys and values are passed around a ring.
-- When to use it: sequences over more ranks than there are heads, with fast links within a node.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "sequence", 2 }, { "context", 2 }, { "data", 1 } },  -- sequence: within a node
  m.context_parallel { attention = "hierarchical" },
}
