-- Alpa: data parallelism with parameters, gradients and optimizer state in parts.
-- When to use it: as the start of what Zero3Parallel (or Zero2Parallel, DataParallel) becomes.
local alpa = require "perigee.alpa"

local strategy = alpa.parallelize(alpa.Zero3Parallel { num_micro_batches = 2 })
return strategy
