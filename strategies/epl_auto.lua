-- EPL: the pipeline is found, of two stages.
-- When to use it: as the start of what an EPL script with auto.auto_parallel becomes.
local epl = require "perigee.epl"

epl.init(epl.Config { ["auto.auto_parallel"] = true, ["pipeline.num_stages"] = 2 })
local strategy = epl.strategy()
return strategy
