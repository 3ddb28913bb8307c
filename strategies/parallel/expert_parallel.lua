-- Expert parallelism: the experts of a mixture are distributed over the ranks of an axis that also
-- shards the batch; tokens travel to their experts and back by all-to-all.
-- When to use it: mixtures whose experts do not fit on one device. Experts must divide over the
-- axis; with other axes of the batch beside it, model.capacity_per = "sample" keeps queues local.
local m = require "perigee.methods"

return {
  m.parallel_mode { { "expert", 2 }, { "data", 1 } },  -- the axis of the experts is the first
  m.expert_parallel {},
}
