-- Recomputes the blocks that the exact solver chooses: least recomputed time in 60% of the activations' memory.
-- When to use it: as the pattern for a problem of your own, from the ops of your model, their times and solver.assign.
local m, profiler, solver = require "perigee.methods", require "perigee.profiler", require "perigee.solver"
local share, ranks_only = 0.6, { m.parallel_mode {} }

local recompute = m.define { name = "solved_checkpoint", fields = { scopes = "list of strings", seconds = "number" },
  doc = "Recomputes the given scopes.",
  apply = function(plan, config)
    local count = plan:recompute(config.scopes)
    plan:note(string.format("the solver recomputes %d blocks, %.4g s of a step", count, config.seconds))
  end }

return function(_, graph)
  local blocks, by_scope, owner, bytes, total = {}, {}, {}, {}, 0
  for _, scope in ipairs(graph.scopes) do
    if scope.path:find "^blocks%.%d+$" then  -- option 1 keeps a block's results, option 2 recomputes them
      local block = { name = scope.path, options = { { time = 0, saved = 0 }, { time = 0, saved = 0 } } }
      blocks[#blocks + 1], by_scope[scope.path] = block, block.options
    end
  end
  for _, op in ipairs(graph.ops) do
    local reader = by_scope[op.scope:match "^blocks%.%d+" or ""]
    for _, name in ipairs(op.inputs) do
      local writer, size = owner[name], bytes[name] or 0
      if op.backward and writer then  -- saved for the backward pass, and counted once
        writer[1].saved, total, bytes[name] = writer[1].saved + size, total + size, 0
      elseif reader and writer ~= reader then reader[2].saved = reader[2].saved + size end
    end
    if not op.backward then owner[op.name], bytes[op.name] = reader, op.bytes end
  end
  for _, op in ipairs(profiler.op_times(ranks_only)) do
    local block = by_scope[op.scope:match "^blocks%.%d+" or ""]
    if block and not op.backward then block[2].time = block[2].time + op.seconds end
  end
  local answer, scopes = solver.assign { ops = blocks, memory_limit = share * total }, {}
  for i, option in ipairs(assert(answer.choice, answer.reason)) do
    if option == 2 then table.insert(scopes, blocks[i].name) end
  end
  return { ranks_only[1], recompute { scopes = scopes, seconds = answer.time } }
end
