-- EPL: activation checkpointing that keeps the user's own tensors, the results of scopes.
-- When to use it: as the translation of an EPL script with the collection "checkpoints".
local epl = require "perigee.epl"

epl.init(epl.Config { ["gradient_checkpoint.type"] = "collection", ["pipeline.num_micro_batch"] = 2 })
epl.checkpoints { "blocks.0", "blocks.1" }
local strategy = epl.strategy()
return strategy
