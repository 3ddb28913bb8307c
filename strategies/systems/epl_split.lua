-- EPL: a large output layer sharded over the devices that hold the replicas of the other layers.
-- When to use it: as the translation of an EPL script with replicate and split.
local epl = require "perigee.epl"

epl.init(epl.Config { ["cluster.colocate_split_and_replicate"] = true })
epl.set_default_strategy(epl.replicate { device_count = 2 })
epl.replicate { device_count = 2, "blocks.*" }
epl.split { device_count = 2, name = "output", "blocks.*.mlp.up" }
local strategy = epl.strategy()
return strategy
