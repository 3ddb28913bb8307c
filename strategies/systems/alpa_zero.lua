-- Alpa: data parallelism with parameters, gradients and optimizer state sharded.
-- When to use it: as the translation of Zero3Parallel (or Zero2Parallel, DataParallel).
local alpa = require "perigee.alpa"

local strategy = alpa.parallelize(alpa.Zero3Parallel { num_micro_batches = 2 })
return strategy
