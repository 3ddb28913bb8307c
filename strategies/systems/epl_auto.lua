-- EPL: a pipeline of two stages, which are found automatically.
-- When to use it: as the translation of an EPL script with auto.auto_parallel.
local epl = require "perigee.epl"

epl.init(epl.Config { ["auto.auto_parallel"] = true, ["pipeline.num_stages"] = 2 })
local strategy = epl.strategy()
return strategy
