-- Chooses among the search's best plans by what cannot be pinned: for the dialects alpa and autodist.
local profiler = require "perigee.profiler"
local solver = require "perigee.solver"

local M = {}

-- Returns the methods that a draft uses, as every candidate has them.
function M.methods_of(draft)
  local list = {}
  for _, name in ipairs(draft.names) do list[#list + 1] = { name, draft.uses[name] } end
  return list
end

-- Returns the strategy of the fastest among the `most` best candidates under the pins for which fits(candidate) holds;
-- nil and why there is none. With allowed(estimate), each of those is simulated, and the simulator says which is the fastest.
function M.best(pins, most, fits, allowed)
  local list, why = solver.candidates(pins, most)
  if not list then return nil, why end
  local best, least, seen = nil, math.huge, 0
  for _, candidate in ipairs(list) do
    if fits(candidate) then
      seen = seen + 1
      if not allowed then return candidate.strategy end
      local estimate = profiler.estimate(candidate.strategy)
      if allowed(estimate) and estimate.seconds < least then
        best, least = candidate.strategy, estimate.seconds
      end
    end
  end
  if best then return best end
  return nil, string.format("of the %d best plans %d have the sizes that are asked for, and none of them fits", #list,
                            seen)
end

-- Returns where the pipeline's parts of a strategy begin, nil where it has none or leaves that to the method.
function M.starts_of(strategy)
  for _, use in ipairs(strategy) do
    if use[1] == "pipeline_parallel" then return use[2].starts end
  end
  return nil
end

return M
