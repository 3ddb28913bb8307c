-- ATorch, fully automatic: no method is named, and a search finds the strategy, here without a pipeline.
-- When to use it: as the translation of auto_accelerate without load_strategy.
local atorch = require "perigee.atorch"

return function(_, graph)
  local status, _, best_strategy, why = atorch.auto_accelerate { model = graph, excluded = { "pipeline_parallel" } }
  if not status then error(why) end
  return best_strategy
end
