-- EPL: mixed precision with a dynamic loss scale.
-- When to use it: as the translation of an EPL script with amp.level.
local epl = require "perigee.epl"

epl.init(epl.Config { ["amp.level"] = "O1", ["amp.loss_scale"] = "dynamic" })
local strategy = epl.strategy()
return strategy
