-- The draft of a strategy, which a dialect's rows and its `build` fill; perigee.dialect documents its fields.
local host = require "perigee.host"
local solver = require "perigee.solver"
local values = require "perigee.dialect_values"

local M, Draft = {}, {}

-- Returns an empty draft. place_of(OPTION) is the place of an option, "FILE:LINE: ", and whether the user gave it;
-- place_of() that of the dialect.
function M.new(order, place_of)
  local draft = { axes = {}, order = order, uses = {}, names = {}, keys = {}, pins = {}, warnings = {}, search = false,
    later = {}, places = {}, place_of = place_of }
  for name, f in pairs(Draft) do draft[name] = f end
  draft:stand(place_of())
  return draft
end

-- Sets the place of all methods used from now on.
function Draft.stand(draft, place, given)
  draft.here = { place = place, given = given }
end

-- Records a method's place: that of the first option that the user gave for it. Returns the place of this one.
local function place(draft, method, option)
  local here, known = draft.here, draft.places[method]
  for i, name in ipairs(type(option) == "table" and option or { option }) do
    local at, given = draft.place_of(name)
    if i == 1 or given then here = { place = at, given = given } end
    if given then break end
  end
  if not known or (here.given and not known.given) then draft.places[method] = here end
  return here
end

-- Records the place of a word of a method's config, a field or a value: errors that name it are reported there.
function Draft.word(draft, method, word, at)
  draft.places[method .. "." .. word] = at or draft.here
end

-- Adds an axis of the mesh, for `option` if it is not that of the row. `data` takes the remaining ranks.
function Draft.axis(draft, name, size, option)
  draft.axes[name] = size
  place(draft, "parallel_mode", option)
end

function Draft.size(draft, name)
  return draft.axes[name] or 1
end

-- Uses a method and adds these fields, for an option ("NAME" or "SECTION.NAME", or a list: the first that is given) if
-- it is not that of the row. Returns its config, to add to.
function Draft.use(draft, name, fields, option)
  local here = place(draft, name, option)
  if not draft.uses[name] then
    draft.uses[name] = {}
    draft.names[#draft.names + 1] = name
  end
  for key, value in pairs(fields or {}) do
    draft.uses[name][key] = value
    if type(key) == "string" and here.given then draft:word(name, key, here) end
  end
  return draft.uses[name]
end

function Draft.uses_method(draft, name)
  return draft.uses[name] ~= nil
end

function Draft.remove(draft, name)
  draft.uses[name] = nil
  for i, other in ipairs(draft.names) do
    if other == name then table.remove(draft.names, i) break end
  end
end

-- Keys of the job that name files, each with the values that do not.
local files = { ["data.text"] = "", ["data.tokens"] = "", ["data.tensors"] = "", ["data.tokenizer"] = "^bytes$",
  ["data.sampler"] = "^[%w_]*$", ["model.file"] = "", ["train.weights"] = "", ["cluster.file"] = "",
  ["cluster.profile"] = "" }

-- Returns the path, or the list of paths, relative to the file that names it.
local function beside(at, path, no_file)
  if type(path) == "table" then
    local list = {}
    for i, item in ipairs(path) do list[i] = beside(at, item, no_file) end
    return list
  end
  local folder = at:match("^(.*/)[^/]*:%d+: $")
  if type(path) ~= "string" or path == "" or path:sub(1, 1) == "/" or not folder then return path end
  return no_file ~= "" and path:find(no_file) and path or folder .. path
end

-- Returns the path of a file relative to the file of the option.
function Draft.beside(draft, path) return beside(draft.here.place, path, "") end

-- Sets a key of the job ("optimizer.lr"). Paths are relative to the file of the option.
function Draft.job(draft, key, value)
  if files[key] then value = beside(draft.here.place, value, files[key]) end
  local wrong = value ~= nil and host.check_key(key, value)
  if wrong then values.fail("%s%s", wrong:sub(1, 1) == "[" and "the job's " or "", wrong) end
  draft.keys[key] = value
  if draft.here.place ~= "" then draft.places["set." .. key] = draft.here end
end

-- Pins a choice of the search (perigee.solver.plan); the strategy is then searched.
function Draft.pin(draft, name, value)
  draft.pins[name] = value
  draft.search = true
end

-- Pins the level of ZeRO in a search. The user's fields of the method apply to the method that the search finds.
function Draft.pin_zero(draft)
  for level, method in ipairs { "zero1", "zero2", "fsdp" } do
    if draft:uses_method(method) then
      draft:pin("zero", level)
      draft:complete(method, draft.uses[method])
      draft:remove(method)
    end
  end
end

-- Adds fields to a method of the found strategy, if it has that method.
function Draft.complete(draft, method, fields)
  draft:afterwards(function(list)
    for i, use in ipairs(list) do
      if use[1] == method or use == method then
        local all = {}
        for key, value in pairs(type(use) == "table" and use[2] or {}) do all[key] = value end
        for key, value in pairs(fields) do all[key] = value end
        list[i] = values.is_empty(all) and { method } or { method, all }
      end
    end
  end)
end

-- Lets f(methods, graph) change the methods once the model, and in a search the plan, is known.
function Draft.afterwards(draft, f)
  draft.later[#draft.later + 1] = f
end

function Draft.warn(draft, text, ...)
  draft.warnings[#draft.warnings + 1] = string.format(text, ...)
end

-- Applies a row's `sets`.
function M.apply(draft, row, value, options)
  local sets = row.sets
  if type(sets) == "function" then return sets(draft, value, options) end
  local head, rest = sets:match("^([^.]+)%.(.+)$")
  if head == "axis" then
    draft:axis(rest, value)
  elseif head == "job" then
    draft:job(rest, value)
  elseif head == "pin" then
    draft:pin(rest, value)
  else
    draft:use(head, { [rest] = value })
  end
end

local function methods_of(draft)
  local list = {}
  local axes = {}
  for _, name in ipairs(draft.order) do
    local stays = name == "data" or name == draft.rest or draft.whole and draft.axes[name]  -- kept at any size
    if stays or draft:size(name) > 1 then axes[#axes + 1] = { name, draft:size(name) } end
  end
  local fixed = draft.ranks or draft.exact or draft.instances or draft.device_mesh or draft.whole
  if #axes == 1 and axes[1][1] == "data" and not draft.axes.data and not fixed then axes[1] = nil end  -- all devices
  axes.order, axes.rest, axes.forbid, axes.exact = draft.ranks, draft.rest, draft.forbid, draft.exact
  axes.instances, axes.device_mesh = draft.instances, draft.device_mesh
  if draft.submeshes then axes = { submeshes = draft.submeshes, order = draft.ranks, forbid = draft.forbid } end
  if not draft.search then
    list[1] = { "parallel_mode", axes }
    place(draft, "parallel_mode")
  end
  for _, name in ipairs(draft.names) do
    list[#list + 1] = values.is_empty(draft.uses[name]) and { name } or { name, draft.uses[name] }
  end
  return list
end

-- Returns the methods of the best accepted trial.
local function search_by_trials(draft, pins)
  local found, why = solver.search(pins, draft.trials)
  local best
  for _, trial in ipairs(found and found.trials or {}) do
    local good = trial.strategy and (not draft.accept or draft.accept(trial.strategy))
    if good and (not best or trial.seconds < best.seconds) then best = trial end
  end
  if not best then
    error("[" .. draft.origin.dialect .. "] " .. (why or "no tried plan meets the options"), 0)
  end
  return best.strategy
end

-- Returns the methods of the best accepted plan, and facts about it.
local function search(draft, pins, job, graph)
  local found, why = solver.plan(pins)  -- why: the reason, or facts about the plan
  if found and draft.accept and not draft.accept(found) then
    local bound, best = why.lower_bound, nil
    local function look(list)
      for _, candidate in ipairs(list) do
        local better = not best or candidate.seconds < best.seconds
        if better and draft.accept(candidate.strategy) then best = candidate end
      end
    end
    look(solver.candidates(pins, 200) or {})
    for _, sized in ipairs(not best and draft.sized and draft.sized(pins, job, graph) or {}) do
      local ok, list = pcall(solver.candidates, sized, 10)
      look(ok and list or {})  -- not ok: sizes that the model cannot have
    end
    found, why = nil, "no plan meets the options"
    if best then
      found, why = best.strategy, { seconds = best.seconds, lower_bound = bound, stopped = false }
    end
  end
  if not found then error("[" .. draft.origin.dialect .. "] " .. why, 0) end
  return found, why
end

-- Returns the places of the methods, by name, and of words of their configs, by METHOD.WORD.
local function places_of(draft)
  local places = {}
  for method, at in pairs(draft.places) do
    if at.place ~= "" then places[method] = at.place end
  end
  return places
end

-- Returns the strategy of a draft: plain data, except `methods`, which is a function if a plan is searched.
function M.strategy(draft)
  local methods = methods_of(draft)
  if draft.unfinished then
    local why = draft.unfinished
    methods = function() error(why, 0) end
  elseif draft.search then
    local pins = { methods = methods }
    for _, name in ipairs { "tensor", "expert", "context", "pipe", "data" } do
      if draft.axes[name] and draft.axes[name] > 1 then pins[name] = draft.axes[name] end
    end
    for name, value in pairs(draft.pins) do pins[name] = value end
    methods = function(job, graph)
      local given = draft.instead and draft.instead(graph)
      if given then return given end
      if draft.trials then return search_by_trials(draft, pins) end
      return search(draft, pins, job, graph)
    end
  end
  if #draft.later > 0 then
    local before = methods
    methods = function(job, graph)
      local list, found, about = {}, before, nil
      if type(before) == "function" then found, about = before(job, graph) end
      for i, use in ipairs(found) do list[i] = use end
      for _, change in ipairs(draft.later) do change(list, graph) end
      return list, about
    end
  end
  local strategy = { methods = methods, origin = draft.origin, events = draft.events, places = places_of(draft) }
  if not values.is_empty(draft.keys) then strategy.set = draft.keys end
  if #draft.warnings > 0 then strategy.warnings = draft.warnings end
  return strategy
end

return M
