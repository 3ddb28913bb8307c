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

-- Returns the candidates of all lists of pins, fastest first, at most `most`. Returns nil and the reason without any.
local function candidates_of(all, most)
  local list, reason = {}, nil
  for _, pins in ipairs(all) do
    if pins.submeshes == nil then pins.submeshes = false end
    local ok, found, why = pcall(solver.candidates, pins, most)
    if not ok and #all == 1 then error(found, 0) end
    if not ok then found, why = nil, tostring(found) end  -- sizes that the model cannot have
    reason = reason or why
    for _, candidate in ipairs(found or {}) do list[#list + 1] = candidate end
  end
  if #list == 0 then return nil, reason or "no combination of the options is possible" end
  local order = {}
  for i, candidate in ipairs(list) do order[candidate] = i end
  table.sort(list, function(a, b)
    if a.seconds ~= b.seconds then return a.seconds < b.seconds end
    return order[a] < order[b]
  end)
  for i = #list, most + 1, -1 do list[i] = nil end
  return list
end

-- Returns the sentence that says why none of the candidates was chosen. `out` counts those that an option excludes; the
-- option that excludes most is named first.
local function none_fits(list, seen, out)
  local text = string.format("of the %d best plans %d have the sizes that are asked for, and none of them fits", #list,
    seen)
  local names, parts = {}, {}
  for name in pairs(out) do names[#names + 1] = name end
  table.sort(names, function(a, b)
    if out[a] ~= out[b] then return out[a] > out[b] end
    return a < b
  end)
  for i, name in ipairs(names) do parts[i] = string.format("%s excludes %d", name, out[name]) end
  return #parts > 0 and text .. " (" .. table.concat(parts, ", ") .. ")" or text
end

-- Sorts simulated plans by their seconds, excluded ones last.
local function sort_by_seconds(judged)
  local order = {}
  for i, plan in ipairs(judged) do order[plan] = i end
  table.sort(judged, function(a, b)
    if (a.excluded_by == nil) ~= (b.excluded_by == nil) then return a.excluded_by == nil end
    if a.costs.seconds ~= b.costs.seconds then return a.costs.seconds < b.costs.seconds end
    return order[a] < order[b]
  end)
end

-- Stages are homogeneous unless `submeshes` is pinned.
-- `all`: lists of pins. Searches each. Returns the strategy of the fastest candidate for which fits(candidate) holds,
-- among the `most` fastest; nil and the reason where none fits. fits returns false and the option that excludes the
-- candidate. With `allowed`, all that fit are simulated, tell(candidate, estimate) is called for each, and the best
-- is the one with the shortest simulated step for which allowed(estimate) holds (else: false and the option). A second
-- result is then the list of all that were simulated, the best first: { strategy, text, costs, excluded_by }. A third
-- result, where none fits, is whether the search has more candidates than `most`.
function M.best(all, most, fits, allowed, tell)
  local list, why = candidates_of(all, most)
  if not list then return nil, why end
  local judged, seen, out = {}, 0, {}
  local function excluded(option) out[option or "another option"] = (out[option or "another option"] or 0) + 1 end
  for _, candidate in ipairs(list) do
    local fit, option = fits(candidate)
    if not fit then excluded(option) end
    if fit then
      seen = seen + 1
      if not allowed then return candidate.strategy end
      local estimate = profiler.estimate(candidate.strategy, all[1])  -- pins of memory are the same in all
      if tell then tell(candidate, estimate) end
      local good, limit = allowed(estimate)
      if not good then excluded(limit) end
      judged[#judged + 1] = { strategy = candidate.strategy, text = candidate.text,
        excluded_by = not good and limit or nil,
        costs = { model_seconds = candidate.seconds, seconds = estimate.seconds, peak_bytes = estimate.peak_bytes,
          bubble_ratio = estimate.bubble_ratio } }
    end
  end
  sort_by_seconds(judged)
  if judged[1] and not judged[1].excluded_by then return judged[1].strategy, judged end
  return nil, none_fits(list, seen, out), #list >= most
end

-- Returns the fields of a method of the strategy, nil if it has no such method. The solver names items beside fields
-- by their positions, { ["1"] = ITEM, FIELD = VALUE }; they become items.
function M.fields_of(strategy, method)
  for _, use in ipairs(strategy) do
    if use[1] == method then
      local fields = use[2] or {}
      local name = tostring(#fields + 1)
      while fields[name] ~= nil do
        fields[#fields + 1] = fields[name]
        fields[name] = nil
        name = tostring(#fields + 1)
      end
      return fields
    end
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

-- Returns the numbered modules at which the search may begin stages, by path: those within no other one. A numbered
-- ModuleList only holds such modules.
function M.blocks_of(graph)
  local lists, blocks = {}, {}
  for _, scope in ipairs(graph.scopes) do lists[scope.path] = scope.type == "ModuleList" end
  local function within_block(path)
    local outer = path:match "^(.*)%.[^.]*$"
    while outer do
      if (outer:find "%.%d+$" or outer:find "^%d+$") and not lists[outer] then return true end
      outer = outer:match "^(.*)%.[^.]*$"
    end
    return false
  end
  for _, scope in ipairs(graph.scopes) do
    local numbered = scope.path:find "%.%d+$" and not lists[scope.path]
    if numbered and not within_block(scope.path) then blocks[scope.path] = true end
  end
  return blocks
end

-- Returns the longest sequence of such modules: its name ("blocks") and its length.
function M.row_of(graph)
  local counts, longest, blocks = {}, nil, M.blocks_of(graph)
  for _, scope in ipairs(graph.scopes) do
    local row = blocks[scope.path] and scope.path:match "^(.+)%.%d+$"
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
