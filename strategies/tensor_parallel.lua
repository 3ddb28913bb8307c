-- Tensor parallelism: the weights of attention, MLPs, experts and embeddings are split over the
-- ranks of an axis; each rank computes its part of every layer, and what they have is summed.
-- When to use it: a layer, or the activations of one sample, do not fit on one device, and the
-- ranks of the axis are joined by fast links. Heads must divide over the axis.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "tensor", 2 }, { "data", 1 } },  -- data takes the ranks that are left
  m.tensor_parallel { sequence = true },  -- between layers activations are sharded too
}
