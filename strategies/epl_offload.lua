-- EPL: all weights lie in the host's memory, and come to the device where they are used.
-- When to use it: as the start of what an EPL script with offload.level becomes.
local epl = require "perigee.epl"

epl.init(epl.Config { ["offload.level"] = "v0" })
local strategy = epl.strategy()
return strategy
