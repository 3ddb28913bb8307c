-- The engine of all dialects: other systems' names for what Perigee does. A dialect is a file beside this one whose
-- tables of options hold one row per name; this file checks what a user gives against the rows and makes a strategy
-- of it. A dialect has no logic that belongs in src/: rows name methods, axes, keys of the job and pins of the search.
--
--     local dialect = require "perigee.dialect"
--     return dialect.new {
--       name = "megatron",                  -- of the module and of its table in a job, [megatron]
--       sections = { {
--         name = "ModelParallelConfig",     -- the function that a script calls; the first section's keys stand in
--         options = { ... },                -- [megatron] itself, another's in [megatron.NAME]
--         rules = { ... },                  -- what must hold between options
--         uses = "METHOD",                  -- which is used where the section is given
--         items = function(draft, list) end,  -- takes what has no name; without it that is an error
--         hidden = true,                    -- no function of the module
--         environment = "EPL_",             -- options that are not given are read from EPL_CATEGORY_ATTRIBUTE
--       } },
--       axes = { "tensor", "data", ... },   -- of the mesh, the first varies fastest; build may set draft.order
--       flat = true,                        -- keys have dots ("pipeline.strategy"), in a job [epl.pipeline] strategy
--       expand = function(values, check, warnings) end,  -- makes further sections' values: check(SECTION, table)
--       build = function(draft, given) end, -- completes the draft; given[SECTION][NAME] is a value or its default
--       blame = "NAME",                     -- the key of a job at which its errors stand that are no option's
--       finish = function(draft, strategy) end,  -- returns the strategy, changed
--     }
--
-- A row is { NAME, TYPE, DEFAULT, field = ... }. Types: boolean, integer, number, string, list, table, function, dtype
-- ("fp16", "bf16", "float32", "float64" and other spellings of these), any; several with "|". DEFAULT nil: not given.
-- What becomes of an option (its verdict) is one of
--   sets = "METHOD.FIELD"          the field of a method, which is then used; or "axis.NAME", "job.KEY", "pin.NAME"
--   sets = function(draft, value, options) end
--   with = "what reads it"         `build` does, or the row of another option
--   no_effect = "why"              one warning, only where a user gave it
--   refused = "what to use"        an error for every value but the default
--   missing = "what there is"      the same, for what Perigee is to have and does not have yet
-- and limits its values: least, most, one_of (a list), lower (compared in lower case), of (type of a list's items),
-- check = function(value) return WRONG end, but = { [VALUE] = { refused|missing|no_effect = ... } } for single values.
-- A row is applied where its value is not the default, or always with always = true.
--
-- A rule is { function(options) return BROKEN end, "NAME", "text" }: the error stands at the option's line in a job, at
-- the user's line in a script. A text with %s gets the option's value. With across = true it is not checked before
-- sections are joined; its function gets all of them second, with what was given in `given`.
--
-- A draft collects what rows say; see Draft below. Its fields beside those that its functions make:
--   alone        of one section, which may be joined with another; where that needs the other, unfinished = "why"
--   search       also with pins: the strategy is searched around what is fixed (perigee.solver.plan); else it is the
--                list of methods. accept(methods) may refuse what is found
--   trials       options of perigee.solver.search, by which it is then searched
--   later        function(methods, graph), which changes them when the model is known
--   events       functions that observe the training, { step = function(report) end }
--   ranks, rest, instances, device_mesh, forbid, exact: fields of parallel_mode (its order, ...)
--   given        what the user gave, by section; order: the axes of the mesh
--
-- `new` returns the module: a function per section, which takes a table and returns a strategy; `make`, that of the
-- first; `strategy`, which joins several such results and { job = "FILE" }; `from_job` for the host; and `rows`, the
-- table, for tests and pages.
local host = require "perigee.host"
local solver = require "perigee.solver"

local M = {}

-- Texts --------------------------------------------------------------------------------------------

local function show(value)
  if type(value) == "string" then return '"' .. value .. '"' end
  if type(value) ~= "table" then return tostring(value) end
  local parts = {}
  for key, item in pairs(value) do
    if #parts == 6 then parts[7] = "..." break end
    parts[#parts + 1] = type(key) == "number" and show(item) or key .. " = " .. show(item)
  end
  return "{" .. table.concat(parts, ", ") .. "}"
end
M.show = show

-- Raises an error that a user can act on; the place in front is put there by `at_user` or is that of a job.
function M.fail(text, ...)
  error(select("#", ...) > 0 and string.format(text, ...) or text, 0)
end

-- The same for what `build` finds wrong with an option of the first section, at whose place in a job it stands.
function M.fail_of(option, text, ...)
  error({ option = option, text = select("#", ...) > 0 and string.format(text, ...) or text }, 0)
end

-- Returns the function with its errors at the line that calls it, whatever they came from.
local function at_user(f)
  return function(...)
    local ok, a, b, c, d = pcall(f, ...)
    if ok then return a, b, c, d end
    if type(a) ~= "string" then error(a, 0) end
    local place = host.place()
    error(a:sub(1, #place) == place and a or place .. a:gsub("^[^\n]-/perigee/%w+%.lua:%d+: (%[)", "%1"), 0)
  end
end
M.at_user = at_user

-- Values -------------------------------------------------------------------------------------------

local dtypes = {
  fp16 = { "fp16", "float16", "half" }, bf16 = { "bf16", "bfloat16" },
  float32 = { "float32", "fp32", "float" }, float64 = { "float64", "fp64", "double" },
}

-- Returns "fp16", "bf16", "float32" or "float64"; nil for what names no dtype.
function M.dtype(value)
  if type(value) ~= "string" then return nil end
  local bare = value:gsub("^torch%.", "")
  for name, spellings in pairs(dtypes) do
    for _, spelling in ipairs(spellings) do
      if spelling == bare then return name end
    end
  end
  return nil
end

local tests = {
  boolean = function(v) return type(v) == "boolean" end,
  integer = function(v) return type(v) == "number" and v == math.floor(v) end,
  number = function(v) return type(v) == "number" end,
  string = function(v) return type(v) == "string" end,
  list = function(v) return type(v) == "table" and (#v > 0 or M.is_empty(v)) end,
  table = function(v) return type(v) == "table" end,
  ["function"] = function(v) return type(v) == "function" end,
  dtype = function(v) return M.dtype(v) ~= nil end,
  any = function() return true end,
}

function M.is_empty(value)
  local count = 0
  for _ in pairs(value) do count = count + 1 end
  return count == 0
end

local named = {
  boolean = "true or false", integer = "an integer", number = "a number", string = "a string", list = "a list",
  table = "a table", ["function"] = "a function", dtype = 'a dtype ("fp16", "bf16", "float32", "float64")',
}

local function check_type(row, value, fail)
  local names = {}
  for wanted in row[2]:gmatch("[^|]+") do
    if tests[wanted](value) then return end
    names[#names + 1] = named[wanted]
  end
  fail("%s must be %s, but got %s", row[1], table.concat(names, " or "), show(value))
end

local function same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  return show(a) == show(b)
end
M.same = same

-- Returns the value as the rest sees it: dtypes by one name, strings in lower case where their row says so.
local function normal(row, value)
  if row[2]:find("dtype", 1, true) and M.dtype(value) then return M.dtype(value) end
  if row.lower and type(value) == "string" then return value:lower() end
  return value
end

local function check_limits(row, value, fail)
  if type(value) == "number" then
    if row.least and value < row.least then
      fail("%s must be at least %s, but got %s", row[1], row.least, value)
    end
    if row.most and value > row.most then fail("%s must be at most %s, but got %s", row[1], row.most, value) end
  end
  if row.one_of and type(value) == type(row.one_of[1]) then
    local found
    for _, allowed in ipairs(row.one_of) do found = found or same(allowed, value) end
    if not found then
      local names = {}
      for i, allowed in ipairs(row.one_of) do names[i] = show(allowed) end
      fail("%s must be one of %s, but got %s%s", row[1], table.concat(names, ", "), show(value),
        type(value) == "string" and host.suggest(value, row.one_of) or "")
    end
  end
  if row.of then
    for i, item in ipairs(value) do
      if not tests[row.of](item) then
        fail("item %d of %s must be %s, but got %s", i, row[1], named[row.of], show(item))
      end
    end
  end
  local wrong = row.check and row.check(value)
  if wrong then fail("%s %s, but got %s", row[1], wrong, show(value)) end
end

-- Returns what becomes of the option: "works", "no effect", "refused" or "missing".
function M.verdict(row)
  if row.no_effect then return "no effect" end
  if row.refused then return "refused" end
  if row.missing then return "missing" end
  return "works"
end

-- Options ------------------------------------------------------------------------------------------

local function row_of(section, name)
  for _, row in ipairs(section.options) do
    if row[1] == name then return row end
  end
  return nil
end

local function check_name(section, name, fail)
  if row_of(section, name) then return end
  local names = {}
  for i, row in ipairs(section.options) do names[i] = row[1] end
  fail("%s has no option %s%s", section.name, show(name), type(name) == "string" and host.suggest(name, names) or "")
end

local function check_verdict(row, value, fail, warnings)
  local but = row.but and row.but[tostring(value)] or row
  local default = but == row and same(value, row[3])
  if but.no_effect then
    warnings[#warnings + 1] = string.format("%s has no effect: %s", row[1], but.no_effect)
  elseif but.refused and not default then
    fail("%s = %s is refused: %s", row[1], show(value), but.refused)
  elseif but.missing and not default then
    fail("%s = %s is not available yet: %s", row[1], show(value), but.missing)
  end
end

-- Checks one option of a table that stands within another option's value. Returns its row; warns where that has no
-- effect.
function M.check(draft, name, options, key, value)
  local section, warnings = { name = name, options = options }, {}
  check_name(section, key, M.fail)
  local row = row_of(section, key)
  check_type(row, value, M.fail)
  check_limits(row, value, M.fail)
  check_verdict(row, value, M.fail, warnings)
  for _, warning in ipairs(warnings) do draft:warn("[%s] %s", draft.origin.dialect, warning) end
  return row
end

-- Raises what the first of the rules says that does not hold between the options of such a table.
function M.check_rules(rules, options)
  for _, rule in ipairs(rules) do
    if rule[1](options, {}) then M.fail((rule[3]:gsub("%%s", function() return show(options[rule[2]]) end))) end
  end
end

-- Warns of variables that are no option's; another program may have them.
local function check_variables(section, variables, warnings)
  local names = {}
  for i, row in ipairs(section.options) do
    names[i] = section.environment .. row[1]:gsub("%.", "_"):upper()
  end
  for variable in pairs(variables) do
    local known
    for _, name in ipairs(names) do known = known or name == variable end
    if not known then
      warnings[#warnings + 1] = string.format("the environment's %s is no option%s", variable,
        host.suggest(variable, names))
    end
  end
end

-- Adds what the environment says of options that were not given; `from` says so in errors.
local function with_environment(section, given, from, warnings)
  local variables = host.environment(section.environment)
  check_variables(section, variables, warnings)
  local all = {}
  for name, value in pairs(given) do all[name] = value end
  for _, row in ipairs(section.options) do
    local variable = section.environment .. row[1]:gsub("%.", "_"):upper()
    local text = variables[variable]
    if text and all[row[1]] == nil then
      from[row[1]] = variable .. ": "
      local truth = ({ ["true"] = true, ["false"] = false })[text]
      if row[2]:find("boolean", 1, true) and truth ~= nil then
        all[row[1]] = truth
      elseif row[2]:find("integer", 1, true) or row[2]:find("number", 1, true) then
        all[row[1]] = tonumber(text) or text
      else
        all[row[1]] = text
      end
    end
  end
  return all
end

-- Checks one table of a user's against a section. `place(name)` stands before an error. Returns the values and
-- the warnings.
local function check_section(spec, section, given, place)
  local values, warnings, from = {}, {}, {}
  local function fail_at(name)
    return function(text, ...)
      M.fail(place(name) .. "[" .. spec.name .. "] " .. (from[name] or "") .. string.format(text, ...))
    end
  end
  if type(given) ~= "table" then fail_at("")("%s takes a table, but got %s", section.name, show(given)) end
  if section.environment then given = with_environment(section, given, from, warnings) end
  for name, value in pairs(given) do
    local fail = fail_at(name)
    if type(name) == "number" and section.items then
      values.items = values.items or {}
      values.items[name] = value
    else
      check_name(section, name, fail)
      local row = row_of(section, name)
      check_type(row, value, fail)
      value = normal(row, value)
      check_limits(row, value, fail)
      check_verdict(row, value, fail, warnings)
      values[name] = value
    end
  end
  return values, warnings
end

local function with_defaults(section, values)
  local all = {}
  for _, row in ipairs(section.options) do
    all[row[1]] = values[row[1]]
    if all[row[1]] == nil then all[row[1]] = normal(row, row[3]) end
  end
  return all
end

-- The draft of a strategy --------------------------------------------------------------------------

local Draft = {}

local function new_draft(order)
  local draft = { axes = {}, order = order, uses = {}, names = {}, keys = {}, pins = {}, warnings = {}, search = false }
  for name, f in pairs(Draft) do draft[name] = f end
  return draft
end

-- An axis of the mesh. `data` takes the ranks that are left.
function Draft.axis(draft, name, size)
  draft.axes[name] = size
end

function Draft.size(draft, name)
  return draft.axes[name] or 1
end

-- Uses a method, with these fields beside what it has already. Returns its config, to add to.
function Draft.use(draft, name, fields)
  if not draft.uses[name] then
    draft.uses[name] = {}
    draft.names[#draft.names + 1] = name
  end
  for key, value in pairs(fields or {}) do draft.uses[name][key] = value end
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

-- A key of the job ("optimizer.lr").
function Draft.job(draft, key, value)
  local wrong = value ~= nil and host.check_key(key, value)
  if wrong then M.fail("%s%s", wrong:sub(1, 1) == "[" and "the job's " or "", wrong) end
  draft.keys[key] = value
end

-- Fixes what the search would choose (perigee.solver.plan); the strategy is then searched.
function Draft.pin(draft, name, value)
  draft.pins[name] = value
  draft.search = true
end

function Draft.warn(draft, text, ...)
  draft.warnings[#draft.warnings + 1] = string.format(text, ...)
end

-- Carries out a row's `sets`.
local function apply(draft, row, value, options)
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
    local stays = name == "data" or name == draft.rest  -- whatever its size
    if stays or draft:size(name) > 1 then axes[#axes + 1] = { name, draft:size(name) } end
  end
  axes.order, axes.rest, axes.forbid, axes.exact = draft.ranks, draft.rest, draft.forbid, draft.exact
  axes.instances, axes.device_mesh = draft.instances, draft.device_mesh
  if not draft.search then list[1] = { "parallel_mode", axes } end
  for _, name in ipairs(draft.names) do
    list[#list + 1] = M.is_empty(draft.uses[name]) and { name } or { name, draft.uses[name] }
  end
  return list
end

-- Returns the methods of the best trial that is accepted.
function M.search_by_trials(draft, pins)
  local found, why = solver.search(pins, draft.trials)
  local best
  for _, trial in ipairs(found and found.trials or {}) do
    local good = trial.strategy and (not draft.accept or draft.accept(trial.strategy))
    if good and (not best or trial.seconds < best.seconds) then best = trial end
  end
  if not best then
    error("[" .. draft.origin.dialect .. "] " .. (why or "no plan that was tried has what is asked for"), 0)
  end
  return best.strategy
end

-- Returns the strategy of a draft: plain data, but for `methods`, which is a function where a plan is searched.
local function strategy_of(draft)
  local methods = methods_of(draft)
  if draft.unfinished then
    local why = draft.unfinished
    methods = function() error(why, 0) end
  elseif draft.search then
    local pins = { methods = methods }
    for _, name in ipairs { "tensor", "pipe", "data" } do
      if draft.axes[name] and draft.axes[name] > 1 then pins[name] = draft.axes[name] end
    end
    for name, value in pairs(draft.pins) do pins[name] = value end
    methods = function()
      if draft.trials then return M.search_by_trials(draft, pins) end
      local found, why = solver.plan(pins)  -- why: also what is known of the plan
      if found and draft.accept and not draft.accept(found) then
        local bound = why.lower_bound
        found, why = nil, "no plan has what is asked for"
        for _, candidate in ipairs(solver.candidates(pins, 200) or {}) do
          if draft.accept(candidate.strategy) then
            found, why = candidate.strategy, { seconds = candidate.seconds, lower_bound = bound, stopped = false }
            break
          end
        end
      end
      if not found then error("[" .. draft.origin.dialect .. "] " .. why, 0) end
      return found, why
    end
  end
  if draft.later then
    local before = methods
    methods = function(job, graph)
      local list, found, about = {}, before, nil
      if type(before) == "function" then found, about = before(job, graph) end
      for i, use in ipairs(found) do list[i] = use end
      draft.later(list, graph)
      return list, about
    end
  end
  local strategy = { methods = methods, origin = draft.origin, events = draft.events }
  if not M.is_empty(draft.keys) then strategy.set = draft.keys end
  if #draft.warnings > 0 then strategy.warnings = draft.warnings end
  return strategy
end

-- Dialects -----------------------------------------------------------------------------------------

-- Plain data of what a user gave, for the plan's decisions; functions have no text.
local function plain(value)
  if type(value) == "function" then return nil end
  if type(value) ~= "table" then return value end
  local copy = {}
  for key, item in pairs(value) do copy[key] = plain(item) end
  return copy
end

-- Raises what a dialect's function raised, with its name before it.
local function raise(spec, why, place)
  local bare = type(why) == "string" and not why:find("%.lua:%d+: ") and why:sub(1, 1) ~= "["
  error(bare and place .. "[" .. spec.name .. "] " .. why or why, 0)
end

-- Makes a strategy of the values of all sections that a user gave ({ SECTION = { NAME = VALUE } }). `alone`: of one
-- section, which may be joined with another.
local function build(spec, values, warnings, place, alone)
  local draft = new_draft(spec.axes)
  local options, shown = {}, {}
  for _, section in ipairs(spec.sections) do
    options[section.name] = with_defaults(section, values[section.name] or {})
    if values[section.name] then shown[section.name] = plain(values[section.name]) end
  end
  draft.origin = { dialect = spec.name, options = shown }
  draft.given, draft.alone = values, alone
  options.given = values
  for _, section in ipairs(spec.sections) do
    local all = options[section.name]
    if values[section.name] or section.always then
      for _, rule in ipairs(section.rules or {}) do
        if not (alone and rule.across) and rule[1](all, options) then
          local value = all[rule[2]]
          M.fail(place(section, rule[2]) .. "[" .. spec.name .. "] " ..
            (rule[3]:find("%s", 1, true) and string.format(rule[3], show(value)) or rule[3]))
        end
      end
      if section.uses and values[section.name] then draft:use(section.uses) end
      local items = (values[section.name] or {}).items
      if items then
        local ok, why = pcall(section.items, draft, items)
        if not ok then raise(spec, why, place(section, "")) end
      end
      for _, row in ipairs(section.options) do
        local value = all[row[1]]
        if row.sets and value ~= nil and (row.always or not same(value, normal(row, row[3]))) then
          local ok, why = pcall(apply, draft, row, value, all)
          if not ok then raise(spec, why, place(section, row[1])) end
        end
      end
    end
  end
  if spec.build then
    local ok, why = pcall(spec.build, draft, options)
    if not ok then
      local of = type(why) == "table" and why or { option = spec.blame, text = why }
      raise(spec, of.text, of.option and place(spec.sections[1], of.option) or "")
    end
  end
  for i, warning in ipairs(warnings) do table.insert(draft.warnings, i, "[" .. spec.name .. "] " .. warning) end
  local strategy = strategy_of(draft)
  return spec.finish and spec.finish(draft, strategy) or strategy
end

local function nowhere() return "" end

-- What a strategy raises once the model is known stands at the place that place_of(text) says.
local function raise_at(strategy, place_of)
  local made = strategy.methods
  if type(made) ~= "function" then return strategy end
  strategy.methods = function(...)
    local ok, result, about = pcall(made, ...)
    if ok then return result, about end
    if type(result) == "string" and result:sub(1, 1) == "[" then result = place_of(result) .. result end
    error(result, 0)
  end
  return strategy
end

-- Returns the place of the key of a job that the text names.
local function place_in_job(text, places)
  local longest, where = "", ""
  for path, place in pairs(places) do
    local key = path:match("[^.]+$") or ""
    if #key > #longest and text:find(key, 1, true) then longest, where = key, place end
  end
  return where
end

-- Keeps what a user gave beside the strategy that was made of it, so that several can be joined.
local function remember(kept, strategy, values, warnings)
  local place = host.place()
  raise_at(strategy, function() return place end)
  kept[#kept + 1] = { strategy = strategy, values = values, warnings = warnings }
  return strategy
end

-- Adds the sections that others stand for.
local function expand(spec, values, warnings, place)
  if not spec.expand then return end
  local ok, why = pcall(spec.expand, values, function(name, given)
    for _, section in ipairs(spec.sections) do
      if section.name == name then
        local checked, more = check_section(spec, section, given, place)
        for _, warning in ipairs(more) do warnings[#warnings + 1] = warning end
        return checked
      end
    end
  end, warnings)
  if not ok then error(type(why) == "string" and why:sub(1, 1) == "[" and place("") .. why or why, 0) end
end

local function section_function(spec, section, kept)
  return at_user(function(given)
    local checked, warnings = check_section(spec, section, given or {}, nowhere)
    local values = { [section.name] = checked }
    expand(spec, values, warnings, nowhere)
    return remember(kept, build(spec, values, warnings, nowhere, true), values, warnings)
  end)
end

local function join_function(spec, kept)
  return at_user(function(parts)
    local values, warnings, job = {}, {}, nil
    if type(parts) ~= "table" then M.fail("[%s] strategy takes a list, but got %s", spec.name, show(parts)) end
    for key, part in pairs(parts) do
      local known
      for _, item in ipairs(kept) do
        if item.strategy == part then known = item end
      end
      if key == "job" then
        job = part
      elseif not known then
        M.fail("[%s] strategy joins what functions of perigee.%s return, and job = FILE, but %s is %s", spec.name,
          spec.name, type(key) == "number" and "item " .. key or key, show(part))
      else
        for section, options in pairs(known.values) do
          if values[section] then M.fail("[%s] %s stands twice: give it one table", spec.name, section) end
          values[section] = options
        end
        for _, warning in ipairs(known.warnings) do warnings[#warnings + 1] = warning end
      end
    end
    local strategy = build(spec, values, warnings, nowhere)
    strategy.job = job
    return remember(kept, strategy, values, warnings)
  end)
end

-- Splits the table of a job into sections.
local function sections_of(spec, given)
  local first = spec.sections[1]
  local tables = {}
  local function put(section, name, value)
    tables[section.name] = tables[section.name] or {}
    tables[section.name][name] = value
  end
  for name, value in pairs(given) do
    local own
    for i = 2, #spec.sections do
      if spec.sections[i].name == name then own = spec.sections[i] end
    end
    if own then
      tables[own.name] = value
    elseif spec.flat and type(value) == "table" and not row_of(first, name) then
      for inner, item in pairs(value) do put(first, name .. "." .. inner, item) end
    else
      put(first, name, value)
    end
  end
  if M.is_empty(given) then tables[first.name] = {} end
  return tables
end

local function job_function(spec)
  return function(given, places)
    local function place(section, name)
      local path = section == spec.sections[1] and name or section.name .. "." .. name
      return places[path] or places[section.name] or places[spec.blame or ""] or ""
    end
    local values, warnings = {}, {}
    local tables = sections_of(spec, given)
    for _, section in ipairs(spec.sections) do
      if tables[section.name] then
        local found
        values[section.name], found = check_section(spec, section, tables[section.name],
          function(name) return place(section, name) end)
        for _, warning in ipairs(found) do warnings[#warnings + 1] = warning end
      end
    end
    expand(spec, values, warnings, function() return places.load_strategy or "" end)
    return raise_at(build(spec, values, warnings, place), function(text) return place_in_job(text, places) end)
  end
end

-- The table of a dialect as plain data: { section, name, type, default, verdict }.
local function rows_of(spec)
  local rows = {}
  for _, section in ipairs(spec.sections) do
    if section.uses or section.items then
      rows[#rows + 1] = { section = section.name, name = section.name, type = "method", verdict = "works" }
    end
    for _, row in ipairs(section.options) do
      rows[#rows + 1] = {
        section = section.name, name = row[1], type = row[2], default = row[3], verdict = M.verdict(row),
        says = row.no_effect or row.refused or row.missing,
      }
    end
  end
  return rows
end

-- Each row says what becomes of its option, once.
local function check_spec(spec)
  for _, section in ipairs(spec.sections) do
    local seen = {}
    for _, row in ipairs(section.options) do
      local ways = 0
      for _, way in ipairs { "sets", "with", "no_effect", "refused", "missing" } do
        if row[way] then ways = ways + 1 end
      end
      if ways ~= 1 or seen[row[1]] then
        error(string.format("the row %s of %s.%s must say once what becomes of it", row[1], spec.name, section.name))
      end
      seen[row[1]] = true
    end
  end
end

function M.new(spec)
  check_spec(spec)
  local kept = {}
  local module = {}
  for _, section in ipairs(spec.sections) do
    if not section.hidden then module[section.name] = section_function(spec, section, kept) end
  end
  module.strategy = join_function(spec, kept)
  module.make = section_function(spec, spec.sections[1], kept)
  module.from_job = job_function(spec)
  module.rows = rows_of(spec)
  return module
end

return M
