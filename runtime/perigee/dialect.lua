-- The engine of all dialects: other systems' names for Perigee's options. A dialect is a file beside this one whose
-- tables of options have one row per name; the rows check the user's values (dialect_values.lua) and turn them into a
-- strategy (dialect_draft.lua). A dialect has no logic that belongs in src/: rows name methods, axes, keys of the job
-- and pins of the search.
--
--     local dialect = require "perigee.dialect"
--     return dialect.new {
--       name = "megatron",                  -- of the module and of its table in a job, [megatron]
--       sections = { {
--         name = "ModelParallelConfig",     -- the function that a script calls; the first section's keys stand in
--         options = { ... },                -- [megatron] itself, another's in [megatron.NAME]
--         rules = { ... },                  -- constraints between options
--         uses = "METHOD",                  -- the method that the section uses
--         items = function(draft, list) end,  -- accepts items without a name, else an error
--         hidden = true,                    -- the module has no such function
--         environment = "EPL_",             -- prefix of the variables of missing options
--       } },
--       axes = { "tensor", "data", ... },   -- of the mesh, the first varies fastest; build may set draft.order
--       flat = true,                        -- keys have dots ("pipeline.strategy"), in a job [epl.pipeline] strategy
--       expand = function(values, check, warnings) end,  -- makes further sections' values: check(SECTION, table)
--       build = function(draft, given) end, -- completes the draft; given[SECTION][NAME] is a value or its default
--       blame = "NAME",                     -- the key of a job for errors of no option
--       finish = function(draft, strategy) end,  -- returns the strategy, changed
--     }
--
-- A row is { NAME, TYPE, DEFAULT, field = ... }. Types: boolean, integer, number, string, list, table, function, dtype
-- ("fp16", "bf16", "float32", "float64" and other spellings of these), any; several with "|". DEFAULT nil: not given.
-- The effect of an option (its verdict) is one of
--   sets = "METHOD.FIELD"          a field, whose method is then used; or "axis.NAME", "job.KEY", "pin.NAME"
--   sets = function(draft, value, options) end
--   with = "reader"                `build` reads it, or the row of another option (one warning where that is off), or
--                                  "a rule: ...", which limits other options
--   no_effect = "why"              one warning, only where a user gave it
--   refused = "replacement"        an error for every value but the default
--   missing = "alternative"        the same, for options that are not available yet
-- and limits its values: least, most, one_of (a list), lower (compared in lower case), of (type of a list's items),
-- check = function(value) return WRONG end, but = { [VALUE] = { refused|missing|no_effect = ... } } for single values.
-- A row is applied where its value is not the default, or always with always = true. With
-- idle = function(options, all, value) return WHY end the user is warned that a value other than the default has no
-- effect beside these options; with across = true once sections are joined.
--
-- A rule is { function(options) return BROKEN end, "NAME", "text" }: the error has the option's line in a job, the
-- user's line in a script. %s in the text is the option's value. With across = true it is checked after sections are
-- joined; its function receives all of them second, with the user's values in `given`.
--
-- A draft (dialect_draft.lua) collects the effects of rows and their places: an error of a method is reported at the
-- option that uses it. Its fields beside those that its functions set:
--   alone        of one section, which may be joined with another; if it requires one, unfinished = "reason"
--   search       as with pins: the strategy is searched under the fixed choices (perigee.solver.plan); else it is the
--                list of methods. accept(methods) may refuse a found plan
--   sized        function(pins, job, graph), returns pins of plans that accept may allow, where none of the best is
--   instead      function(graph), which returns methods if nothing is to be searched, else nil
--   trials       options of perigee.solver.search, which then replaces the search
--   later        functions of (methods, graph), which change them once the model is known (draft:afterwards)
--   events       functions that observe the training, { step = function(report) end }
--   whole        given axes of one rank are kept
--   ranks, rest, instances, device_mesh, forbid, exact: fields of parallel_mode (its order, ...)
--   submeshes    the axes of each stage, { { "data", 2 } }, ..., instead of axes if stages are heterogeneous
--   given        the user's values, by section; order: the axes of the mesh
--
-- `new` returns the module: a function per section, which takes a table and returns a strategy; `make`, that of the
-- first; `strategy`, which joins several such results and { job = "FILE" }; `from_job` for the host; and `rows`, the
-- table, for tests and pages.
local drafts = require "perigee.dialect_draft"
local host = require "perigee.host"
local values_of = require "perigee.dialect_values"

local M = {}
for name, f in pairs(values_of) do M[name] = f end

local check_section, normal, same, show = M.check_section, M.normal, M.same, M.show

-- Returns a text without a place in Perigee's modules.
local function unplaced(text)
  return (text:gsub("^[^\n]-/perigee/[%w_]+%.lua:%d+: (%[)", "%1"))
end

-- Returns the function with all its errors reported at the line that calls it.
local function at_user(f)
  return function(...)
    local ok, a, b, c, d = pcall(f, ...)
    if ok then return a, b, c, d end
    if type(a) ~= "string" then error(a, 0) end
    local place, text = host.place(), unplaced(a)
    local placed = text:sub(1, #place) == place or text:find("^[^%[\n][^\n]-:%d+: %[")
    error(placed and text or place .. text, 0)
  end
end
M.at_user = at_user

-- Dialects -----------------------------------------------------------------------------------------

-- The user's values as plain data, for the plan's decisions; functions have no text.
local function plain(value)
  if type(value) == "function" then return nil end
  if type(value) ~= "table" then return value end
  local copy = {}
  for key, item in pairs(value) do copy[key] = plain(item) end
  return copy
end

-- Raises an error of a dialect's function, with the dialect's name before it.
local function raise(spec, why, place)
  local bare = type(why) == "string" and not why:find("%.lua:%d+: ") and why:sub(1, 1) ~= "["
  error(bare and place .. "[" .. spec.name .. "] " .. why or why, 0)
end

-- Returns the place of an option of the dialect ("NAME", of another section than the first "SECTION.NAME"), and whether
-- the user gave it; without one, the place of the dialect. `at(section, name)` returns places.
local function finder(spec, values, at)
  return function(option)
    local section, name = spec.sections[1], option or ""
    for _, other in ipairs(spec.sections) do
      if name:sub(1, #other.name + 1) == other.name .. "." then
        section, name = other, name:sub(#other.name + 2)
        break
      end
    end
    local item = name:gsub("%.%d+$", "")  -- an item of a list
    return at(section, name), (values[section.name] or {})[item] ~= nil
  end
end

-- Makes a strategy of the user's values of all sections ({ SECTION = { NAME = VALUE } }). `place` precedes its errors,
-- `at` returns the places of methods. `alone`: of one section, which may be joined with another.
local function build(spec, values, warnings, place, at, alone)
  local draft = drafts.new(spec.axes, finder(spec, values, at))
  local options, shown = {}, {}
  for _, section in ipairs(spec.sections) do
    options[section.name] = M.with_defaults(section, values[section.name] or {})
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
      draft:stand(at(section, ""), values[section.name] ~= nil)
      if section.uses and values[section.name] then draft:use(section.uses) end
      local items = (values[section.name] or {}).items
      if items then
        local ok, why = pcall(section.items, draft, items)
        if not ok then raise(spec, why, place(section, "")) end
      end
      for _, row in ipairs(section.options) do
        local value = all[row[1]]
        local given = (values[section.name] or {})[row[1]] ~= nil
        local why = given and not (row.across and alone) and M.idle_reason(section, row, all, options)
        if why then draft:warn("[%s] %s has no effect: %s", spec.name, row[1], why) end
        if row.sets and value ~= nil and (row.always or not same(value, normal(row, row[3]))) then
          draft:stand(at(section, row[1]), given)
          local ok, wrong = pcall(drafts.apply, draft, row, value, all)
          if not ok then raise(spec, wrong, place(section, row[1])) end
        end
      end
    end
  end
  draft:stand(at(spec.sections[1], ""), false)
  if spec.build then
    local ok, why = pcall(spec.build, draft, options)
    if not ok then
      local of = type(why) == "table" and why or { option = spec.blame, text = why }
      raise(spec, of.text, of.place or (finder(spec, values, place)(of.option)))
    end
  end
  for i, warning in ipairs(warnings) do table.insert(draft.warnings, i, "[" .. spec.name .. "] " .. warning) end
  local strategy = drafts.strategy(draft)
  return spec.finish and spec.finish(draft, strategy) or strategy
end

local function nowhere() return "" end

-- Errors that a strategy raises once the model is known are reported at place_of(option), or where the dialect is used.
local function raise_at(spec, strategy, place_of)
  local made = strategy.methods
  if type(made) ~= "function" then return strategy end
  strategy.methods = function(...)
    local ok, result, about = pcall(made, ...)
    if ok then return result, about end
    local of = type(result) == "table" and result.text and result or {}
    if of.text then result = "[" .. spec.name .. "] " .. of.text end
    if type(result) == "string" and unplaced(result):sub(1, 1) == "[" then
      result = (of.place or place_of(of.option)) .. unplaced(result)
    end
    error(result, 0)
  end
  return strategy
end

-- Keeps the user's values beside their strategy, so that several can be joined; `lines` has the places of the calls
-- of sections.
local function remember(spec, kept, strategy, values, warnings, lines)
  local place = host.place()
  raise_at(spec, strategy, function() return place end)
  kept[#kept + 1] = { strategy = strategy, values = values, warnings = warnings, lines = lines }
  return strategy
end

-- Returns the places of methods of a script's options.
local function at_lines(lines)
  local here = host.place()
  return function(section) return lines[section.name] or here end
end

-- Adds the sections that other sections imply.
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
    local lines = { [section.name] = host.place() }
    local strategy = build(spec, values, warnings, nowhere, at_lines(lines), true)
    return remember(spec, kept, strategy, values, warnings, lines)
  end)
end

local function join_function(spec, kept)
  return at_user(function(parts)
    local values, warnings, lines, job = {}, {}, {}, nil
    if type(parts) ~= "table" then M.fail("[%s] strategy takes a list, but got %s", spec.name, show(parts)) end
    for key, part in pairs(parts) do
      local known
      for _, item in ipairs(kept) do
        if item.strategy == part then known = item end
      end
      if key == "job" then
        job = part
      elseif not known then
        M.fail("[%s] strategy joins results of perigee.%s's functions and job = FILE, but %s is %s", spec.name,
          spec.name, type(key) == "number" and "item " .. key or key, show(part))
      else
        for section, options in pairs(known.values) do
          if values[section] then M.fail("[%s] %s stands twice: give it one table", spec.name, section) end
          values[section], lines[section] = options, known.lines[section]
        end
        for _, warning in ipairs(known.warnings) do warnings[#warnings + 1] = warning end
      end
    end
    local strategy = build(spec, values, warnings, nowhere, at_lines(lines))
    strategy.job = job
    return remember(spec, kept, strategy, values, warnings, lines)
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
    elseif spec.flat and type(value) == "table" and not M.row_of(first, name) then
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
      local of_list = path:gsub("%.%d+$", "")
      return places[path] or places[of_list] or places[section.name] or places[spec.blame or ""] or places[""] or ""
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
    local place_of = finder(spec, values, place)
    return raise_at(spec, build(spec, values, warnings, place, place), function(option) return (place_of(option)) end)
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

-- Each row states the effect of its option once.
local function check_spec(spec)
  for _, section in ipairs(spec.sections) do
    local seen = {}
    for _, row in ipairs(section.options) do
      local ways = 0
      for _, way in ipairs { "sets", "with", "no_effect", "refused", "missing" } do
        if row[way] then ways = ways + 1 end
      end
      if ways ~= 1 or seen[row[1]] then
        error(string.format("the row %s of %s.%s must state its effect once", row[1], spec.name, section.name))
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
