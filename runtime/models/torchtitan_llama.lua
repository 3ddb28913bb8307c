-- Llama in the ops of torchtitan in 2024 without torch.compile: the built-in llama with norms of single ops, each of
-- which reads and writes its whole tensor.
local nn, torch = require "perigee.nn", require "perigee.torch"

-- Returns the dtype of norms and angles, which need more digits than 16 bits have.
local function precise(dtype) return dtype == "float64" and "float64" or "float32" end

local RmsNorm = nn.Module "RmsNorm"
function RmsNorm:init(width) self.weight = nn.Parameter(torch.ones { width }) end
function RmsNorm:forward(x) -- any shape, of the last dim
  local y = x:to(precise(x.dtype))
  return (y * torch.rsqrt(y:pow(2):mean({ -1 }, true) + 1e-5)):to(x.dtype) * self.weight
end

local function linear(inputs, outputs) return nn.Linear(inputs, outputs, { bias = false }) end

-- Rotates pairs (x[i], x[i + d/2]) of x [b, h, s, d] by the angles with the given cos and sin [s, d].
local function rotate(x, cos, sin)
  local half = x:size(-1) / 2
  local turned = torch.cat({ -x:narrow(-1, half, half), x:narrow(-1, 0, half) }, -1)
  return x * cos + turned * sin
end

local Attention = nn.Module "Attention"
function Attention:init(o)
  self.heads, self.kv_heads, self.size = o.heads, o.kv_heads, o.width / o.heads
  self.q = linear(o.width, o.width)
  self.k = linear(o.width, o.kv_heads * self.size)
  self.v = linear(o.width, o.kv_heads * self.size)
  self.out = linear(o.width, o.width)
end
function Attention:forward(x, cos, sin) -- [b, s, w] -> [b, s, w]
  local b, s, w = unpack(x.shape)
  local function split(y, heads) return y:view(b, s, heads, self.size):transpose(1, 2) end
  local y = torch.scaled_dot_product_attention(rotate(split(self.q(x), self.heads), cos, sin),
                                               rotate(split(self.k(x), self.kv_heads), cos, sin),
                                               split(self.v(x), self.kv_heads), nil, 0, true,
                                               { enable_gqa = self.kv_heads ~= self.heads })
  return self.out(y:transpose(1, 2):reshape(b, s, w))
end

local Mlp = nn.Module "Mlp"
function Mlp:init(o)
  self.gate = linear(o.width, o.hidden)
  self.up = linear(o.width, o.hidden)
  self.down = linear(o.hidden, o.width)
end
function Mlp:forward(x) return self.down(torch.silu(self.gate(x)) * self.up(x)) end

local Block = nn.Module "Block"
function Block:init(o)
  self.norm1 = RmsNorm(o.width)
  self.attn = Attention(o)
  self.norm2 = RmsNorm(o.width)
  self.mlp = Mlp(o)
end
function Block:forward(x, cos, sin)
  x = x + self.attn(self.norm1(x), cos, sin)
  return x + self.mlp(self.norm2(x))
end

local Llama = nn.Module "Llama"
function Llama:init(o)
  self.size = o.width / o.heads
  self.theta = o.theta
  self.embed = nn.Embedding(o.vocab, o.width)
  self.blocks = nn.ModuleList()
  for _ = 1, o.layers do self.blocks:append(Block(o)) end
  self.norm = RmsNorm(o.width)
  self.head = linear(o.width, o.vocab)
  for _, parameter in self:named_parameters() do
    if parameter:dim() == 2 then nn.init.normal_(parameter, 0, 0.02) end
  end
end
function Llama:forward(tokens) -- [b, s] -> logits [b, s, v]
  local x = self.embed(tokens)
  local options = { dtype = precise(x.dtype) }
  local exponents = torch.arange(0, self.size, 2, options) * (-1 / self.size)
  local frequency = torch.pow(self.theta, exponents)
  local angle = torch.arange(tokens:size(1), options):unsqueeze(1) * frequency
  local angles = torch.cat({ angle, angle }, -1)
  local cos, sin = angles:cos():to(x.dtype), angles:sin():to(x.dtype)
  for _, block in self.blocks:each() do x = block(x, cos, sin) end
  return self.head(self.norm(x))
end

return {
  options = {
    layers = 80, width = 8192, heads = 64, kv_heads = 8, hidden = 28672, vocab = 128256, theta = 500000,
  },
  batch = function(o, job)
    return {
      tokens = { shape = { job.data.sequence }, classes = o.vocab },
      labels = { shape = { job.data.sequence }, classes = o.vocab, shift = 1 },
    }
  end,
  model = function(o) return Llama(o) end,
  forward = function(net, batch)
    local logits = net(batch.tokens)
    local loss
    if batch.labels then
      loss = torch.cross_entropy_loss(logits:flatten(0, 1), batch.labels:flatten())
    end
    return { loss = loss, logits = logits }
  end,
}
