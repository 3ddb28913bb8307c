-- Sizes and stages as pins of the search, for the dialects autodist, alpa and epl: each function returns a list of
-- pins, one for each combination that the options allow.
local candidates = require "perigee.candidates"
local dialect = require "perigee.dialect"

local M = {}

local function with(pins, more)
  local all = {}
  for name, value in pairs(pins) do all[name] = value end
  for name, value in pairs(more) do all[name] = value end
  return all
end

-- The copies of the mesh that train the same: world_size over mesh_row x mesh_col.
function M.copies(o) return math.max(1, o.world_size / (o.mesh_row * o.mesh_col)) end

-- Returns the samples of one microbatch on all ranks, nil if no option gives them.
local function samples_of(o, asked, global)
  local copies = M.copies(o)
  if asked.micro_batch_size and asked.update_freq and o.micro_batch_size * o.update_freq * copies ~= global then
    dialect.fail_of("micro_batch_size", "micro_batch_size x update_freq x copies (world_size / (mesh_row x mesh_col)) "
      .. "must be batch.global = %d, but got micro_batch_size = %d x update_freq = %d x %d", global, o.micro_batch_size,
      o.update_freq, copies)
  end
  if asked.micro_batch_size and global % (o.micro_batch_size * copies) ~= 0 then
    dialect.fail_of("micro_batch_size", "micro_batch_size x copies (world_size / (mesh_row x mesh_col)) must divide "
      .. "batch.global = %d, but got %d x %d", global, o.micro_batch_size, copies)
  end
  if asked.micro_batch_size then return o.micro_batch_size * copies, "micro_batch_size" end
  if not asked.update_freq then return nil end
  if global % o.update_freq ~= 0 then
    dialect.fail_of("update_freq", "update_freq must divide batch.global = %d, but got %d", global, o.update_freq)
  end
  return global / o.update_freq, "update_freq"
end

-- Whether experts may be distributed over ranks that have samples of their own.
local function has_experts(graph)
  for _, op in ipairs(graph.ops) do
    if op.op == "perigee::grouped_mm" then return true end
  end
  return false
end

-- Returns the number of ranks: the run's, else the mesh's, which is 1 where no option gives it.
local function ranks_of(o, job)
  local ranks = (job.cluster or {}).ranks or 0
  return ranks > 0 and ranks or math.max(o.world_size, o.mesh_row * o.mesh_col)
end

-- Returns the pins of each number of data ranks and samples that micro_batch_size, update_freq, zero_ngroups and
-- world_size allow.
function M.of_data(pins, o, asked, job, graph)
  local ranks, global = ranks_of(o, job), (job.batch or {}).global
  local copies = M.copies(o)
  if not global then return { pins } end
  local samples, option = samples_of(o, asked, global)
  if not samples and copies == 1 and o.zero_ngroups == 1 then return { pins } end
  local all, experts = {}, has_experts(graph)
  for data = 1, ranks do
    local whole = ranks % (data * (pins.pipe or 1)) == 0 and data % copies == 0 and data % o.zero_ngroups == 0
    if whole and not samples then
      all[#all + 1] = with(pins, { data = data })
    elseif whole and samples % data == 0 then
      for micro = experts and 1 or samples / data, samples / data do
        if samples / data % micro == 0 then all[#all + 1] = with(pins, { data = data, micro = micro }) end
      end
    end
  end
  if #all == 0 then
    local text = "the data ranks must divide the %d ranks of a stage%s and be a multiple of zero_ngroups = %d and of "
      .. "world_size / (mesh_row x mesh_col) = %d, but no number does"
    dialect.fail_of(o.zero_ngroups > 1 and "zero_ngroups" or option or "world_size", text,
      ranks / (pins.pipe or 1),
      samples and string.format(" and the %d samples of a microbatch (%s)", samples, option) or "", o.zero_ngroups,
      copies)
  end
  return all
end

-- Returns pins that restrict the search to plans of `count` microbatches; none if no pins do.
function M.of_microbatches(pins, count, job, graph)
  local o = { update_freq = count, zero_ngroups = 1, world_size = 1, mesh_row = 1, mesh_col = 1 }
  local ok, all = pcall(M.of_data, pins, o, { update_freq = count }, job, graph)
  return ok and all[1] ~= pins and all or {}
end

-- The most stages of a pipeline of so many microbatches whose bubble is at most this ratio of a step.
function M.most_stages(ratio, microbatches)
  return math.floor(ratio / (1 - ratio) * microbatches + 1e-9) + 1
end

-- Returns the pins of pipelines that max_pipeline_bubble_ratio allows: none where other options fix the microbatches.
function M.of_bubble(pins, o, asked, job, graph)
  local global, all = (job.batch or {}).global or 0, {}
  if asked.update_freq or asked.micro_batch_size or pins.pipe == 1 then return all end
  for count = 1, global do
    local sized = { o = with(o, { update_freq = count }), asked = with(asked, { update_freq = count }) }
    local most = math.min(pins.pipe or ranks_of(o, job), M.most_stages(o.max_pipeline_bubble_ratio, count))
    for pipe = pins.pipe or 2, global % count == 0 and most or 0 do
      local ok, list = pcall(M.of_data, with(pins, { pipe = pipe }), sized.o, sized.asked, job, graph)
      for _, one in ipairs(ok and list or {}) do all[#all + 1] = one end
    end
  end
  return all
end

-- Stages ------------------------------------------------------------------------------------------------------------

-- Schedules whose stages have two parts each.
local chunked = { interleaved = true, looped_bfs = true, zbv = true, v_half = true, v_min = true, dualpipe_v = true }

-- Returns the scopes of the list at which a stage after the first may begin, in the order of the forward pass, and the
-- arithmetic before the first of them and from each on.
local function cuts_of(scopes, graph)
  local first, cuts, work, seen = {}, {}, { 0 }, 0
  for _, op in ipairs(graph.ops) do
    if not op.backward then
      for _, scope in ipairs(scopes) do
        if not first[scope] and candidates.inside(op.scope, scope) then
          first[scope] = true
          if seen > 0 and (#cuts == 0 or work[#work] > 0) then
            cuts[#cuts + 1] = scope
            work[#work + 1] = 0
          end
        end
      end
      work[#work] = work[#work] + op.flops
      seen = seen + 1
    end
  end
  return cuts, work
end

-- Returns the starts of `parts` parts whose largest has the least arithmetic.
local function balanced(cuts, work, parts)
  local total = { 0 }
  for i, flops in ipairs(work) do total[i + 1] = total[i] + flops end
  local least, from = { {} }, { {} }
  for last = 1, #work do least[1][last] = total[last + 1] end
  for part = 2, parts do
    least[part], from[part] = {}, {}
    for last = part, #work do
      for start = part, last do  -- the part has the pieces from `start` to `last`
        local worst = math.max(least[part - 1][start - 1], total[last + 1] - total[start])
        if not least[part][last] or worst < least[part][last] then
          least[part][last], from[part][last] = worst, start
        end
      end
    end
  end
  local starts, last = {}, #work
  for part = parts, 2, -1 do
    local start = from[part][last]
    table.insert(starts, 1, cuts[start - 1])
    last = start - 1
  end
  return starts
end

-- Returns whether the scopes are all blocks of the model, at which the search itself begins stages.
local function are_blocks(scopes, graph)
  local blocks, left = candidates.blocks_of(graph), 0
  for _ in pairs(blocks) do left = left + 1 end
  for _, scope in ipairs(scopes) do
    if not blocks[scope] then return false end
    left = left - 1
  end
  return left == 0
end

-- The least arithmetic of a stage as a share of the largest one's, and the option that sets it.
function M.balance(o)
  if o.min_pipeline_balance then return o.min_pipeline_balance, "min_pipeline_balance" end
  return o.max_pipeline_unbalance_ratio, "max_pipeline_unbalance_ratio"
end

-- Returns the pins of each number of stages that begin at these scopes. The search begins stages at blocks only; at
-- other modules they are cut here, such that the largest stage has the least arithmetic. Stages without the balance of
-- the options are left out.
function M.of_pivots(pins, o, scopes, graph)
  if are_blocks(scopes, graph) then return { pins } end
  local cuts, work = cuts_of(scopes, graph)
  local chunks = chunked[o.pipeline_scheduler] and 2 or 1
  local least, most = 1, math.floor((#cuts + 1) / chunks)
  if o.pipeline_nstages ~= "auto" then least, most = o.pipeline_nstages, math.min(most, o.pipeline_nstages) end
  if least > most then
    local text = "pipeline_nstages = %d with %d parts each needs %d pivots after the model's first op, but "
      .. "pipeline_pivots = %s has %d"
    dialect.fail_of("pipeline_pivots", text, least, chunks, least * chunks - 1, dialect.show(o.pipeline_pivots), #cuts)
  end
  local balance, option = M.balance(o)
  local all, best = {}, 0
  for stages = least, most do
    if stages == 1 then
      all[#all + 1] = with(pins, { pipe = 1 })
    else
      local cut = { "pipeline_parallel", { starts = balanced(cuts, work, stages * chunks) } }
      local shares = candidates.shares({ pipe = stages, strategy = { cut } }, graph)
      local own = math.min(unpack(shares)) / math.max(unpack(shares))
      best = math.max(best, own)
      local methods = {}
      for i, method in ipairs(pins.methods) do methods[i] = method end
      methods[#methods + 1] = cut
      -- The search's own balance is that of cuts at blocks.
      if own >= balance then
        all[#all + 1] = with(pins, { pipe = stages, chunks = chunks, methods = methods, balance = 0 })
      end
    end
  end
  if #all == 0 then
    local text = "%s excludes all stages that begin at pipeline_pivots = %s: at best the smallest has %.3g of the "
      .. "arithmetic of the largest, but must have %.3g"
    dialect.fail_of(option, text, option, dialect.show(o.pipeline_pivots), best, balance)
  end
  return all
end

return M
