-- Megatron's two layouts of a stage's ranks as axes of one mesh: attention and MLPs have tensor x context x data ranks,
-- experts tensor x expert x data ranks of other sizes; the first varies fastest in both.
local dialect = require "perigee.dialect"

local M = {}

-- Splits the tensor axis if it is larger than an expert's: the ranks that shard each expert, those that distribute
-- experts, and the others. Returns the number of further ranks that must distribute experts.
local function cut_tensor(layout, tensor, of_expert, experts)
  local outer = tensor / of_expert
  local shared = math.min(outer, experts)
  if outer % shared ~= 0 or experts % shared ~= 0 then
    dialect.fail_of("expert_tensor_parallel_size", "expert_tensor_parallel_size = %d leaves %d of "
      .. "tensor_model_parallel_size = %d: expert_model_parallel_size must be a multiple or a part of that, but got %d",
      of_expert, outer, tensor, experts)
  end
  for i, size in ipairs { of_expert, shared, outer / shared } do
    if size > 1 then
      local name = "tensor" .. (#layout.tensor > 0 and #layout.tensor + 1 or "")
      layout.axes[#layout.axes + 1] = { name, size, "tensor_model_parallel_size" }
      layout.tensor[#layout.tensor + 1] = name
      local of = ({ layout.split, layout.shared })[i]
      if of then of[#of + 1] = name end
    end
  end
  return experts / shared
end

-- Returns { axes = { { NAME, SIZE, OPTION }, ... }, tensor, split, shared, same_axes }: axes that shard layers,
-- that shard each expert, and that distribute experts; whether experts are sharded over the axes of layers. `heads` of
-- the context ranks are neighbours.
function M.of(o, heads)
  local tensor, context, experts = o.tensor_model_parallel_size, o.context_parallel_size, o.expert_model_parallel_size
  local of_expert = o.expert_tensor_parallel_size or tensor
  if tensor % math.min(of_expert, tensor) ~= 0 or of_expert % math.min(of_expert, tensor) ~= 0 then
    dialect.fail_of("expert_tensor_parallel_size", "expert_tensor_parallel_size must be a part or a multiple of "
      .. "tensor_model_parallel_size = %d, but got %d", tensor, of_expert)
  end
  local layout = { axes = {}, tensor = {}, split = {}, shared = {} }
  local function add(name, size, list, option)
    if size == 1 then return end
    layout.axes[#layout.axes + 1] = { name, size, option }
    if list then list[#list + 1] = name end
  end
  if of_expert < tensor then
    experts = cut_tensor(layout, tensor, of_expert, experts)
  else
    add("tensor", tensor, layout.tensor, "tensor_model_parallel_size")
    if tensor > 1 then layout.split[1] = "tensor" end
  end
  local over_context = experts % context == 0  -- else they are distributed outside of it
  add("sequence", heads, over_context and layout.shared, "context_parallel_size")
  add("context", context / heads, over_context and layout.shared, "context_parallel_size")
  add("expert2", math.max(of_expert / tensor, 1), layout.split, "expert_tensor_parallel_size")
  add("expert", over_context and experts / context or experts, layout.shared, "expert_model_parallel_size")
  layout.same_axes = of_expert == tensor
  return layout
end

return M
