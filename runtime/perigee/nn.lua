-- perigee.nn: layers for models written in Lua (runtime/lua_models.md), over perigee.torch.
-- Shapes, defaults and first values equal torch.nn's.
local host = require "perigee.host"
local torch = require "perigee.torch"

local nn = {
  Module = torch.Module,
  Parameter = torch.Parameter,
  Buffer = torch.Buffer,
  scope = torch.scope,
  no_grad = torch.no_grad,
  init = {},
}

-- Returns a layer's options: `given` over `defaults`.
local function options(layer, given, defaults)
  torch.check(given == nil or type(given) == "table",
              string.format("nn.%s takes a table of options last, but got %s", layer, tostring(given)))
  local result, names = {}, {}
  for name, value in pairs(defaults) do
    result[name] = value
    names[#names + 1] = name
  end
  for name, value in pairs(given or {}) do
    torch.check(defaults[name] ~= nil,
                string.format("nn.%s has the options %s, but got %s%s", layer, table.concat(names, ", "),
                              tostring(name), host.suggest(tostring(name), names)))
    torch.check(type(value) == type(defaults[name]) or type(value) == "table",
                string.format("nn.%s: %s is a %s, but got %s", layer, name, type(defaults[name]),
                              tostring(value)))
    result[name] = value
  end
  return result
end

local function check_size(layer, name, value)
  torch.check(type(value) == "number" and value >= 1 and value % 1 == 0,
              string.format("nn.%s: %s is a whole number from 1 on, but got %s", layer, name,
                            tostring(value)))
end

-- Returns a list of `count` numbers.
local function spread(value, count)
  if type(value) == "table" then return value end
  local list = {}
  for i = 1, count do list[i] = value end
  return list
end

-- First values, in place (torch.nn.init).

local init = nn.init

function init.normal_(tensor, mean, std) return tensor:normal_(mean or 0, std or 1) end
function init.uniform_(tensor, from, to) return tensor:uniform_(from or 0, to or 1) end
function init.constant_(tensor, value) return tensor:fill_(value) end
function init.zeros_(tensor) return tensor:zero_() end
function init.ones_(tensor) return tensor:fill_(1) end

-- Returns the fans: the inputs of each output, and the outputs of each input.
local function fans(tensor)
  torch.check(tensor:dim() >= 2, "fans require a tensor of two dims or more")
  local field = 1
  for i = 2, tensor:dim() - 1 do field = field * tensor:size(i) end
  return tensor:size(1) * field, tensor:size(0) * field
end

local function deviation(tensor, given)
  local o = options("init.kaiming", given, { a = 0, mode = "fan_in", nonlinearity = "leaky_relu" })
  local gains = { leaky_relu = math.sqrt(2 / (1 + o.a * o.a)), relu = math.sqrt(2), linear = 1 }
  torch.check(gains[o.nonlinearity], "nonlinearity is leaky_relu, relu or linear")
  torch.check(o.mode == "fan_in" or o.mode == "fan_out", "mode is fan_in or fan_out")
  local fan_in, fan_out = fans(tensor)
  return gains[o.nonlinearity] / math.sqrt(o.mode == "fan_in" and fan_in or fan_out)
end

function init.kaiming_normal_(tensor, given) return tensor:normal_(0, deviation(tensor, given)) end

function init.kaiming_uniform_(tensor, given)
  local bound = math.sqrt(3) * deviation(tensor, given)
  return tensor:uniform_(-bound, bound)
end

function init.xavier_normal_(tensor, gain)
  local fan_in, fan_out = fans(tensor)
  return tensor:normal_(0, (gain or 1) * math.sqrt(2 / (fan_in + fan_out)))
end

function init.xavier_uniform_(tensor, gain)
  local fan_in, fan_out = fans(tensor)
  local bound = math.sqrt(3) * (gain or 1) * math.sqrt(2 / (fan_in + fan_out))
  return tensor:uniform_(-bound, bound)
end

-- Gives a layer its weight and bias with the first values of torch.nn's linear layers.
local function linear_parameters(layer, shape, outputs, bias)
  layer.weight = nn.Parameter(torch.empty(shape))
  if bias then layer.bias = nn.Parameter(torch.empty { outputs }) end
  init.kaiming_uniform_(layer.weight, { a = math.sqrt(5) })
  if bias then
    local bound = 1 / math.sqrt((fans(layer.weight)))
    layer.bias:uniform_(-bound, bound)
  end
end

-- Linear(inputs, outputs, { bias = true })
nn.Linear = nn.Module "Linear"
function nn.Linear:init(inputs, outputs, given)
  check_size("Linear", "inputs", inputs)
  check_size("Linear", "outputs", outputs)
  linear_parameters(self, { outputs, inputs }, outputs, options("Linear", given, { bias = true }).bias)
end
function nn.Linear:forward(x) -- as torch::nn::functional::linear
  if x:dim() == 2 and self.bias then return torch.addmm(self.bias, x, self.weight:t()) end
  local y = x:matmul(self.weight:t())
  return self.bias and y + self.bias or y
end

-- Embedding(count, width)
nn.Embedding = nn.Module "Embedding"
function nn.Embedding:init(count, width)
  check_size("Embedding", "count", count)
  check_size("Embedding", "width", width)
  self.weight = nn.Parameter(torch.empty { count, width })
  init.normal_(self.weight)
end
function nn.Embedding:forward(indices) return torch.embedding(self.weight, indices) end

-- LayerNorm(width or a list of sizes, { eps = 1e-5, bias = true })
nn.LayerNorm = nn.Module "LayerNorm"
function nn.LayerNorm:init(shape, given)
  local o = options("LayerNorm", given, { eps = 1e-5, bias = true })
  self.shape, self.eps = spread(shape, 1), o.eps
  self.weight = nn.Parameter(torch.empty(self.shape))
  if o.bias then self.bias = nn.Parameter(torch.empty(self.shape)) end
  init.ones_(self.weight)
  if o.bias then init.zeros_(self.bias) end
end
function nn.LayerNorm:forward(x)
  return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)
end

-- RMSNorm(width or a list of sizes, { eps = 1e-6 })
nn.RMSNorm = nn.Module "RMSNorm"
function nn.RMSNorm:init(shape, given)
  self.shape, self.eps = spread(shape, 1), options("RMSNorm", given, { eps = 1e-6 }).eps
  self.weight = nn.Parameter(torch.ones(self.shape))
end
function nn.RMSNorm:forward(x) return torch.rms_norm(x, self.shape, self.weight, self.eps) end

-- GroupNorm(groups, channels, { eps = 1e-5 })
nn.GroupNorm = nn.Module "GroupNorm"
function nn.GroupNorm:init(groups, channels, given)
  check_size("GroupNorm", "groups", groups)
  check_size("GroupNorm", "channels", channels)
  self.groups, self.eps = groups, options("GroupNorm", given, { eps = 1e-5 }).eps
  self.weight = nn.Parameter(torch.empty { channels })
  self.bias = nn.Parameter(torch.empty { channels })
  init.ones_(self.weight)
  init.zeros_(self.bias)
end
function nn.GroupNorm:forward(x)
  return torch.group_norm(x, self.groups, self.weight, self.bias, self.eps)
end

-- Conv1d and Conv2d(inputs, outputs, kernel, { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true })
local function convolution(name, dims, op)
  local layer = nn.Module(name)
  function layer:init(inputs, outputs, kernel, given)
    check_size(name, "inputs", inputs)
    check_size(name, "outputs", outputs)
    local o = options(name, given,
                      { stride = 1, padding = 0, dilation = 1, groups = 1, bias = true })
    self.stride, self.padding = spread(o.stride, dims), spread(o.padding, dims)
    self.dilation, self.groups = spread(o.dilation, dims), o.groups
    local shape = { outputs, inputs / o.groups, unpack(spread(kernel, dims)) }
    linear_parameters(self, shape, outputs, o.bias)
  end
  function layer:forward(x)
    return op(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
  end
  return layer
end
nn.Conv1d = convolution("Conv1d", 1, torch.conv1d)
nn.Conv2d = convolution("Conv2d", 2, torch.conv2d)

-- BatchNorm1d and BatchNorm2d(channels, { eps = 1e-5, momentum = 0.1 })
local function batch_norm(name)
  local layer = nn.Module(name)
  function layer:init(channels, given)
    check_size(name, "channels", channels)
    local o = options(name, given, { eps = 1e-5, momentum = 0.1 })
    self.eps, self.momentum = o.eps, o.momentum
    self.weight = nn.Parameter(torch.empty { channels })
    self.bias = nn.Parameter(torch.empty { channels })
    self.running_mean = nn.Buffer(torch.zeros { channels })
    self.running_var = nn.Buffer(torch.ones { channels })
    self.num_batches_tracked = nn.Buffer(torch.zeros({}, { dtype = "int64" }))
    init.ones_(self.weight)
    init.zeros_(self.bias)
  end
  function layer:forward(x)
    if self.training then self.num_batches_tracked:add_(1) end
    return torch.batch_norm(x, self.weight, self.bias, self.running_mean, self.running_var,
                            self.training, self.momentum, self.eps, true)
  end
  return layer
end
nn.BatchNorm1d = batch_norm "BatchNorm1d"
nn.BatchNorm2d = batch_norm "BatchNorm2d"

-- Dropout(p): zeroes elements while training.
nn.Dropout = nn.Module "Dropout"
function nn.Dropout:init(p)
  self.p = p or 0.5
  torch.check(type(self.p) == "number" and self.p >= 0 and self.p < 1,
              "nn.Dropout: p is from 0 to below 1, but got " .. tostring(p))
end
function nn.Dropout:forward(x) return torch.dropout(x, self.p, self.training) end

-- Functions as modules, for Sequential.
local function activation(name, run)
  local layer = nn.Module(name)
  function layer.forward(_, x) return run(x) end
  return layer
end
nn.Identity = activation("Identity", function(x) return x end)
nn.ReLU = activation("ReLU", torch.relu)
nn.GELU = activation("GELU", torch.gelu)
nn.SiLU = activation("SiLU", torch.silu)
nn.Tanh = activation("Tanh", torch.tanh)

-- ModuleList { a, b, ... }: modules 0, 1, ...; `for i, block in list:each() do`, list:append(m)
nn.ModuleList = nn.Module "ModuleList"
function nn.ModuleList:init(list)
  self.count = 0
  for _, module in ipairs(list or {}) do self:append(module) end
end
function nn.ModuleList:append(module)
  self[tostring(self.count)] = module
  self.count = self.count + 1
end
function nn.ModuleList:get(i) return self[tostring(i)] end
function nn.ModuleList:each()
  local modules = {}
  for i = 1, self.count do modules[i] = self:get(i - 1) end
  return ipairs(modules)
end

-- Sequential { a, b, ... }: each receives the previous one's result.
nn.Sequential = nn.Module("Sequential", nn.ModuleList)
function nn.Sequential:forward(x)
  for _, module in self:each() do x = module(x) end
  return x
end

return nn
