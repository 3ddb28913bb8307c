-- Hierarchical context parallelism: within a node an all-to-all gives each rank some heads of the
-- sequence's part that the node has; from node to node keys and values go round.
-- When to use it: sequences over more ranks than there are heads, with fast links within a node.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "sequence", 2 }, { "context", 2 }, { "data", 1 } },  -- sequence: within a node
  m.context_parallel { attention = "hierarchical" },
}
