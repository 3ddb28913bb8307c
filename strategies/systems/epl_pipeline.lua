-- EPL: a pipeline of two replicas' stages, with four microbatches by PreferBackward (1F1B).
-- When to use it: as the translation of an EPL script with several replicate scopes.
local epl = require "perigee.epl"

epl.init(epl.Config { ["pipeline.num_micro_batch"] = 4, ["pipeline.strategy"] = "PreferBackward" })
epl.replicate { device_count = 1, name = "stage_0", "embed", "blocks.0" }
epl.replicate { device_count = 1, name = "stage_1", "blocks.1", "norm" }
local strategy = epl.strategy()
return strategy
