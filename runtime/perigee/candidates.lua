-- Chooses among the search's best plans by properties that cannot be pinned: for the dialects alpa and autodist.
local profiler = require "perigee.profiler"
local solver = require "perigee.solver"

local M = {}

-- Returns the methods of a draft, which every candidate has.
function M.methods_of(draft)
  local list = {}
  for _, name in ipairs(draft.names) do list[#list + 1] = { name, draft.uses[name] } end
  return list
end

-- Stages are homogeneous unless `submeshes` is pinned.
-- Returns the strategy of the best candidate for which fits(candidate) holds, among the search's `most` best under the
-- pins; nil and the reason if there is none. With `allowed`, all that fit are simulated, tell(candidate, estimate) is
-- called for each, and the best is the one with the shortest simulated step for which allowed(estimate) holds.
function M.best(pins, most, fits, allowed, tell)
  if pins.submeshes == nil then pins.submeshes = false end
  local list, why = solver.candidates(pins, most)
  if not list then return nil, why end
  local best, least, seen = nil, math.huge, 0
  for _, candidate in ipairs(list) do
    if fits(candidate) then
      seen = seen + 1
      if not allowed then return candidate.strategy end
      local estimate = profiler.estimate(candidate.strategy, pins)
      if tell then tell(candidate, estimate) end
      if allowed(estimate) and estimate.seconds < least then
        best, least = candidate.strategy, estimate.seconds
      end
    end
  end
  if best then return best end
  return nil, string.format("of the %d best plans %d have the sizes that are asked for, and none of them fits", #list,
                            seen)
end

-- Returns the fields of a method of the strategy, nil if it has no such method.
function M.fields_of(strategy, method)
  for _, use in ipairs(strategy) do
    if use[1] == method then return use[2] or {} end
  end
  return nil
end

-- Returns the starts of a strategy's pipeline parts, nil if it has none or the method chooses them.
function M.starts_of(strategy)
  local fields = M.fields_of(strategy, "pipeline_parallel")
  return fields and fields.starts
end

-- Returns whether a scope equals another one or is within it.
function M.inside(scope, outer)
  return scope == outer or scope:sub(1, #outer + 1) == outer .. "."
end

-- Returns the longest sequence of numbered modules: its name ("blocks") and its length.
function M.row_of(graph)
  local counts, longest = {}, nil
  for _, scope in ipairs(graph.scopes) do
    local row = scope.path:match("^(.+)%.%d+$")
    if row then
      counts[row] = (counts[row] or 0) + 1
      if not longest or counts[row] > counts[longest] then longest = row end
    end
  end
  return longest, longest and counts[longest] or 0
end

-- Returns the share of each of a candidate's stages in the forward pass's arithmetic.
function M.shares(candidate, graph)
  local starts, stages = M.starts_of(candidate.strategy), {}
  for stage = 1, candidate.pipe do stages[stage] = 0 end
  if not starts then return nil end
  local part, total = 1, 0
  for _, op in ipairs(graph.ops) do
    if not op.backward then
      if starts[part] and M.inside(op.scope, starts[part]) then part = part + 1 end
      local stage = (part - 1) % candidate.pipe + 1
      stages[stage] = stages[stage] + op.flops
      total = total + op.flops
    end
  end
  for stage = 1, candidate.pipe do stages[stage] = stages[stage] / math.max(total, 1) end
  return stages
end

return M
