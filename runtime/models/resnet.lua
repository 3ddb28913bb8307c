-- Residual networks (He et al. 2015) on images [channels, image, image]: the built-in resnet, op for op. Images below
-- 64 keep their size in the stem.
local nn, torch = require "perigee.nn", require "perigee.torch"

local stages = {
  [18] = { 2, 2, 2, 2 },
  [34] = { 3, 4, 6, 3 },
  [50] = { 3, 4, 6, 3 },
  [101] = { 3, 4, 23, 3 },
  [152] = { 3, 8, 36, 3 },
}

local function convolution(inputs, outputs, kernel, stride)
  local layer = nn.Conv2d(inputs, outputs, kernel,
                          { stride = stride, padding = math.floor(kernel / 2), bias = false })
  nn.init.kaiming_normal_(layer.weight, { mode = "fan_out", nonlinearity = "relu" })
  return layer
end

-- A basic block (3x3, 3x3), or a bottleneck (1x1, 3x3, 1x1 to four times the width) from 50 layers on.
local Block = nn.Module "Block"
function Block:init(inputs, width, stride, bottleneck)
  self.convs = nn.ModuleList()
  self.norms = nn.ModuleList()
  local function add(from, to, kernel, step)
    self.convs:append(convolution(from, to, kernel, step))
    self.norms:append(nn.BatchNorm2d(to))
  end
  local outputs = bottleneck and 4 * width or width
  if bottleneck then
    add(inputs, width, 1, 1)
    add(width, width, 3, stride)
    add(width, outputs, 1, 1)
  else
    add(inputs, width, 3, stride)
    add(width, width, 3, 1)
  end
  if stride ~= 1 or inputs ~= outputs then
    self.shortcut = convolution(inputs, outputs, 1, stride)
    self.shortcut_norm = nn.BatchNorm2d(outputs)
  end
end
function Block:forward(x)
  local y = x
  for i, conv in self.convs:each() do
    if i > 1 then y = torch.relu(y) end
    y = self.norms:get(i - 1)(conv(y))
  end
  return torch.relu(y + (self.shortcut and self.shortcut_norm(self.shortcut(x)) or x))
end

local Resnet = nn.Module "Resnet"
function Resnet:init(o)
  torch.check(stages[o.depth], "depth is 18, 34, 50, 101 or 152, but got " .. o.depth)
  self.large = o.image >= 64
  local bottleneck, width, inputs = o.depth >= 50, o.width, o.width
  self.stem = convolution(o.channels, width, self.large and 7 or 3, self.large and 2 or 1)
  self.norm = nn.BatchNorm2d(width)
  self.blocks = nn.ModuleList()
  for stage, count in ipairs(stages[o.depth]) do
    for i = 1, count do
      self.blocks:append(Block(inputs, width, stage > 1 and i == 1 and 2 or 1, bottleneck))
      inputs = bottleneck and 4 * width or width
    end
    width = 2 * width
  end
  self.head = nn.Linear(inputs, o.classes)
end
function Resnet:forward(x) -- [b, c, s, s] -> [b, classes]
  x = torch.relu(self.norm(self.stem(x)))
  if self.large then x = torch.max_pool2d(x, 3, 2, 1) end
  for _, block in self.blocks:each() do x = block(x) end
  return self.head(x:mean { 2, 3 })
end

return {
  options = { depth = 18, width = 64, classes = 10, channels = 3, image = 32 },

  batch = function(o)
    return { image = { shape = { o.channels, o.image, o.image } }, label = { classes = o.classes } }
  end,

  model = function(o) return Resnet(o) end,

  forward = function(net, batch)
    local output = net(batch.image)
    return {
      loss = batch.label and torch.cross_entropy_loss(output, batch.label),
      output = output,
    }
  end,
}
