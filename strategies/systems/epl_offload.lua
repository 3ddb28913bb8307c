-- EPL: all weights are kept in the host's memory and copied to the device before their use.
-- When to use it: as the translation of an EPL script with offload.level.
local epl = require "perigee.epl"

epl.init(epl.Config { ["offload.level"] = "v0" })
local strategy = epl.strategy()
return strategy
