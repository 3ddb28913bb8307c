-- EPL: replicas that shard optimizer state and gradients, with activation checkpointing of blocks.
-- When to use it: as the translation of an EPL script with zero.level and gradient_checkpoint.type.
local epl = require "perigee.epl"

epl.init(epl.Config { ["zero.level"] = "v1", ["gradient_checkpoint.type"] = "auto" })
local strategy = epl.strategy()
return strategy
