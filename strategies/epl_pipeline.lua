-- EPL: two replicas' stages in a pipeline, with four microbatches in flight order.
-- When to use it: as the start of what an EPL script with several replicate scopes becomes.
local epl = require "perigee.epl"

epl.init(epl.Config { ["pipeline.num_micro_batch"] = 4, ["pipeline.strategy"] = "PreferBackward" })
epl.replicate { device_count = 1, name = "stage_0", "embed", "blocks.0" }
epl.replicate { device_count = 1, name = "stage_1", "blocks.1", "norm" }
local strategy = epl.strategy()
return strategy
