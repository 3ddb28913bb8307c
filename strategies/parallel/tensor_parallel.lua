-- Tensor parallelism: the weights of attention, MLPs, experts and embeddings are sharded over the
-- ranks of an axis; each rank computes its part of every layer, and the partial results are summed.
-- When to use it: a layer, or the activations of one sample, do not fit on one device, and fast links
-- join the ranks of the axis. Heads must divide over the axis.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "data", 1 } },  -- data takes the remaining ranks
  m.tensor_parallel { sequence = true },  -- between layers activations are sharded too
}
