-- EPL: replicas that share out the experts (model.kind = "moe").
-- When to use it: as the translation of an EPL script of a mixture of experts.
local epl = require "perigee.epl"

epl.init(epl.Config { ["cluster.colocate_split_and_replicate"] = true })
epl.set_default_strategy(epl.replicate { device_count = 2 })
epl.replicate { device_count = 2, "embed" }
epl.split { device_count = 2, name = "experts", experts = true }
local strategy = epl.strategy()
return strategy
