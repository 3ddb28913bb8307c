-- EPL: replicas that keep optimizer state and gradients in parts, and run blocks again in the backward pass.
-- When to use it: as the start of what an EPL script with zero.level and gradient_checkpoint.type becomes.
local epl = require "perigee.epl"

epl.init(epl.Config { ["zero.level"] = "v1", ["gradient_checkpoint.type"] = "auto" })
local strategy = epl.strategy()
return strategy
