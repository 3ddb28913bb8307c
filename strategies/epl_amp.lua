-- EPL: mixed precision with a loss scale that adjusts itself.
-- When to use it: as the start of what an EPL script with amp.level becomes.
local epl = require "perigee.epl"

epl.init(epl.Config { ["amp.level"] = "O1", ["amp.loss_scale"] = "dynamic" })
local strategy = epl.strategy()
return strategy
