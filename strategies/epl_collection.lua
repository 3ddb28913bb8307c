-- EPL: the user's own checkpoint tensors are the results of scopes.
-- When to use it: as the start of what an EPL script with the collection "checkpoints" becomes.
local epl = require "perigee.epl"

epl.init(epl.Config { ["gradient_checkpoint.type"] = "collection", ["pipeline.num_micro_batch"] = 2 })
epl.checkpoints { "blocks.0", "blocks.1" }
local strategy = epl.strategy()
return strategy
