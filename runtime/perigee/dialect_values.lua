-- The checks of all dialects: names, types and limits of options, given by perigee.dialect's rows.
local host = require "perigee.host"

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

-- Raises an error for the user; the dialect adds the place before it.
function M.fail(text, ...)
  error(select("#", ...) > 0 and string.format(text, ...) or text, 0)
end

-- The same for an error of an option ("NAME", of another section than the first "SECTION.NAME") that is found when the
-- draft is built or the model is known: a job's error has the option's place.
function M.fail_of(option, text, ...)
  error({ option = option, text = select("#", ...) > 0 and string.format(text, ...) or text }, 0)
end

-- The same for an error at a place that the dialect knows, "FILE:LINE: ".
function M.fail_at(place, text, ...)
  error({ place = place, text = string.format(text, ...) }, 0)
end

-- Values -------------------------------------------------------------------------------------------

local dtypes = {
  fp16 = { "fp16", "float16", "half" }, bf16 = { "bf16", "bfloat16" },
  float32 = { "float32", "fp32", "float" }, float64 = { "float64", "fp64", "double" },
}

-- Returns "fp16", "bf16", "float32" or "float64"; nil if the text names no dtype.
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

function M.same(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  return show(a) == show(b)
end

-- Returns the normalised value: dtypes by one name, strings in lower case if their row says so.
function M.normal(row, value)
  if row[2]:find("dtype", 1, true) and M.dtype(value) then return M.dtype(value) end
  if row.lower and type(value) == "string" then return value:lower() end
  return value
end

-- Returns the option's other types: "a number or ", and so on.
local function other_types(row, value)
  local text = ""
  for wanted in row[2]:gmatch("[^|]+") do
    if not tests[wanted](value) then text = text .. named[wanted] .. " or " end
  end
  return text
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
    for _, allowed in ipairs(row.one_of) do found = found or M.same(allowed, value) end
    if not found then
      local names = {}
      for i, allowed in ipairs(row.one_of) do names[i] = show(allowed) end
      fail("%s must be %sone of %s, but got %s%s", row[1], other_types(row, value), table.concat(names, ", "),
        show(value), type(value) == "string" and host.suggest(value, row.one_of) or "")
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

-- Returns the effect of the option: "works", "a rule" (it only limits other options), "no effect", "refused" or
-- "missing".
function M.verdict(row)
  if row.no_effect then return "no effect" end
  if row.refused then return "refused" end
  if row.missing then return "missing" end
  if type(row.with) == "string" and row.with:find "^a rule: " then return "a rule" end
  return "works"
end

-- Options ------------------------------------------------------------------------------------------

function M.row_of(section, name)
  for _, row in ipairs(section.options) do
    if row[1] == name then return row end
  end
  return nil
end

-- `more`: other allowed names.
local function check_name(section, name, fail, more)
  if M.row_of(section, name) then return end
  local names = {}
  for i, row in ipairs(section.options) do names[i] = row[1] end
  for _, other in ipairs(more or {}) do names[#names + 1] = other end
  fail("%s has no option %s%s", section.name, show(name), type(name) == "string" and host.suggest(name, names) or "")
end

local function check_verdict(row, value, fail, warnings)
  local but = row.but and row.but[tostring(value)] or row
  local default = but == row and M.same(value, row[3])
  if but.no_effect then
    warnings[#warnings + 1] = string.format("%s has no effect: %s", row[1], but.no_effect)
  elseif but.refused and not default then
    fail("%s = %s is refused: %s", row[1], show(value), but.refused)
  elseif but.missing and not default then
    fail("%s = %s is not available yet: %s", row[1], show(value), but.missing)
  end
end

-- Checks one option of a table within another option's value. Returns its row; warns if it has no effect.
function M.check(draft, name, options, key, value)
  local section, warnings = { name = name, options = options }, {}
  check_name(section, key, M.fail)
  local row = M.row_of(section, key)
  check_type(row, value, M.fail)
  check_limits(row, value, M.fail)
  check_verdict(row, value, M.fail, warnings)
  for _, warning in ipairs(warnings) do draft:warn("[%s] %s", draft.origin.dialect, warning) end
  return row
end

-- Raises the error of the first rule that does not hold between the options of such a table.
function M.check_rules(rules, options)
  for _, rule in ipairs(rules) do
    if rule[1](options, {}) then M.fail((rule[3]:gsub("%%s", function() return show(options[rule[2]]) end))) end
  end
end

-- Warns of variables of no option; they may be another program's.
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

-- Adds the environment's values of options that were not given; `from` marks them in errors.
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

-- Returns the names of the sections after the first, which a job has within the first one's table.
local function titles(spec)
  local names = {}
  for i = 2, #spec.sections do names[#names + 1] = spec.sections[i].name end
  return names
end

-- Returns the text's numbers as a key for sorting places by line and column.
local function position(place)
  local line, column = place:match(":(%d+):(%d+): $")
  return tonumber(line or place:match(":(%d+): $")) or 0, tonumber(column) or 0
end

-- Raises the first of the errors of a table's options, in the order of the file or else of their names.
local function raise_first(section, wrong)
  if #wrong == 0 then return end
  table.sort(wrong, function(a, b)
    if a.line ~= b.line then return a.line < b.line end
    if a.column ~= b.column then return a.column < b.column end
    return a.name < b.name
  end)
  local text, more = wrong[1].text, #wrong - 1
  if more > 0 then
    text = string.format("%s (and %d more option%s of %s %s wrong)", text, more, more == 1 and "" or "s", section.name,
      more == 1 and "is" or "are")
  end
  error(text, 0)
end

-- Checks one table of a user's against a section. `place(name)` precedes an error. Returns the values and
-- the warnings.
function M.check_section(spec, section, given, place)
  local values, warnings, from, wrong = {}, {}, {}, {}
  local function fail_at(name)
    return function(text, ...)
      M.fail(place(name) .. "[" .. spec.name .. "] " .. (from[name] or "") .. string.format(text, ...))
    end
  end
  if type(given) ~= "table" then fail_at("")("%s takes a table, but got %s", section.name, show(given)) end
  if section.environment then given = with_environment(section, given, from, warnings) end
  local function check(name, value)
    local fail = fail_at(name)
    local tables = type(value) == "table" and section == spec.sections[1]
    check_name(section, name, fail, tables and titles(spec))
    local row = M.row_of(section, name)
    check_type(row, value, fail)
    value = M.normal(row, value)
    check_limits(row, value, fail)
    check_verdict(row, value, fail, warnings)
    values[name] = value
  end
  for name, value in pairs(given) do
    if type(name) == "number" and section.items then
      values.items = values.items or {}
      values.items[name] = value
    else
      local ok, why = pcall(check, name, value)
      if not ok then
        if type(why) ~= "string" then error(why, 0) end
        local line, column = position(place(name))
        wrong[#wrong + 1] = { name = tostring(name), text = why, line = line, column = column }
      end
    end
  end
  raise_first(section, wrong)
  return values, warnings
end

-- Whether a default means that an option is not in use.
local function is_off(default) return default == nil or default == false or default == "" end

-- Returns the reason why a given option has no effect beside the other options, nil if it has one. `all` are the
-- options of its section, `options` those of all sections.
function M.idle_reason(section, row, all, options)
  local value = all[row[1]]
  if M.same(value, M.normal(row, row[3])) then return nil end
  if row.idle then return row.idle(all, options, value) end
  local owner = type(row.with) == "string" and M.row_of(section, row.with)
  if not owner or not is_off(owner[3]) or not M.same(all[owner[1]], M.normal(owner, owner[3])) then return nil end
  return string.format("%s is %s", owner[1], owner[3] == nil and "not given" or show(owner[3]))
end

function M.with_defaults(section, values)
  local all = {}
  for _, row in ipairs(section.options) do
    all[row[1]] = values[row[1]]
    if all[row[1]] == nil then all[row[1]] = M.normal(row, row[3]) end
  end
  return all
end

return M
