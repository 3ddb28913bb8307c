-- GPT in the ops of Megatron-LM until 2023: attention of products, softmax and dropout in a scope of its own
-- (`attn.core`), which selective recomputation recomputes (Korthikanti et al. 2022, section 5). The mask is added in
-- the product, since Megatron-LM's kernel masks and scales in the softmax. Dropout as in its GPT-3 runs.
local nn, torch = require "perigee.nn", require "perigee.torch"

local Core = nn.Module "Core"
function Core:init(o) self.dropout = o.dropout end
function Core:attend(query, key, value) -- [b, h, s, d] each -> [b, h, s, d]
  local b, h, s, d = unpack(query.shape)
  local function flat(x) return x:reshape(b * h, s, d) end
  local mask = torch.triu(torch.full({ s, s }, -1e4, { dtype = query.dtype }), 1)
  local scores = torch.baddbmm(mask, flat(query), flat(key):transpose(1, 2), { alpha = 1 / math.sqrt(d) })
  local weights = torch.dropout(torch.softmax(scores, -1), self.dropout, self.training)
  return torch.bmm(weights, flat(value)):view(b, h, s, d)
end
function Core:forward(...)
  return nn.scope(self, self.attend, self, ...)
end

local Attention = nn.Module "Attention"
function Attention:init(o)
  self.heads = o.heads
  self.qkv = nn.Linear(o.width, 3 * o.width)
  self.core = Core(o)
  self.out = nn.Linear(o.width, o.width)
end
function Attention:forward(x) -- [b, s, w] -> [b, s, w]
  local b, s, w = unpack(x.shape)
  local parts = self.qkv(x):view(b, s, self.heads, 3, w / self.heads):permute(3, 0, 2, 1, 4)
  local y = self.core(parts[0], parts[1], parts[2])
  return self.out(y:transpose(1, 2):reshape(b, s, w))
end

local Mlp = nn.Module "Mlp"
function Mlp:init(o)
  self.up = nn.Linear(o.width, 4 * o.width)
  self.down = nn.Linear(4 * o.width, o.width)
end
function Mlp:forward(x) return self.down(torch.gelu(self.up(x), { approximate = "tanh" })) end

local Block = nn.Module "Block"
function Block:init(o)
  self.norm1 = nn.LayerNorm(o.width)
  self.attn = Attention(o)
  self.drop1 = nn.Dropout(o.dropout)
  self.norm2 = nn.LayerNorm(o.width)
  self.mlp = Mlp(o)
  self.drop2 = nn.Dropout(o.dropout)
end
function Block:forward(x)
  x = x + self.drop1(self.attn(self.norm1(x)))
  return x + self.drop2(self.mlp(self.norm2(x)))
end

local Gpt = nn.Module "Gpt"
function Gpt:init(o)
  self.embed = nn.Embedding(o.vocab, o.width)
  self.position = nn.Embedding(o.positions, o.width)
  self.drop = nn.Dropout(o.dropout)
  self.blocks = nn.ModuleList()
  for _ = 1, o.layers do self.blocks:append(Block(o)) end
  self.norm = nn.LayerNorm(o.width)
  -- Projections into the residual stream start smaller with depth.
  for name, parameter in self:named_parameters() do
    local residual = name:find "attn%.out%.weight$" or name:find "mlp%.down%.weight$"
    if name:find "%.bias$" then
      parameter:zero_()
    elseif parameter:dim() == 2 then
      nn.init.normal_(parameter, 0, residual and 0.02 / math.sqrt(2 * o.layers) or 0.02)
    end
  end
end
function Gpt:forward(tokens) -- [b, s] -> logits [b, s, v]
  local positions = self.position(torch.arange(tokens:size(1), { dtype = "int64" }))
  local x = self.drop(self.embed(tokens) + positions)
  for _, block in self.blocks:each() do x = block(x) end
  return torch.linear(self.norm(x), self.embed.weight)
end

return {
  options = { layers = 96, width = 12288, heads = 96, vocab = 51200, positions = 2048, dropout = 0.1 },
  batch = function(o, job)
    return {
      tokens = { shape = { job.data.sequence }, classes = o.vocab },
      labels = { shape = { job.data.sequence }, classes = o.vocab, shift = 1 },
    }
  end,
  model = function(o) return Gpt(o) end,
  forward = function(net, batch)
    local logits = net(batch.tokens)
    local loss
    if batch.labels then
      loss = torch.cross_entropy_loss(logits:flatten(0, 1), batch.labels:flatten())
    end
    return { loss = loss, logits = logits }
  end,
}
