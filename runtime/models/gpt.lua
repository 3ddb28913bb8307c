-- GPT-2 (Radford et al. 2019): the built-in gpt, op for op. Learned positions, pre-norm blocks, GELU by tanh, the
-- head tied to the embedding.
local nn, torch = require "perigee.nn", require "perigee.torch"

local Attention = nn.Module "Attention"
function Attention:init(o)
  self.heads, self.dropout = o.heads, o.dropout
  self.qkv = nn.Linear(o.width, 3 * o.width, { bias = o.bias })
  self.out = nn.Linear(o.width, o.width, { bias = o.bias })
end
function Attention:forward(x) -- [b, s, w] -> [b, s, w]
  local b, s, w = unpack(x.shape)
  -- Query, key and value of a head are adjacent, so that heads can be sharded.
  local parts = self.qkv(x):view(b, s, self.heads, 3, w / self.heads):permute(3, 0, 2, 1, 4)
  local dropout = self.training and self.dropout or 0
  local value, key, query = parts[2], parts[1], parts[0]
  local y = torch.scaled_dot_product_attention(query, key, value, nil, dropout, true)
  return self.out(y:transpose(1, 2):reshape(b, s, w))
end

local Mlp = nn.Module "Mlp"
function Mlp:init(o)
  self.up = nn.Linear(o.width, o.hidden, { bias = o.bias })
  self.down = nn.Linear(o.hidden, o.width, { bias = o.bias })
end
function Mlp:forward(x) return self.down(torch.gelu(self.up(x), { approximate = "tanh" })) end

local Block = nn.Module "Block"
function Block:init(o)
  self.norm1 = nn.LayerNorm(o.width, { eps = o.eps })
  self.attn = Attention(o)
  self.drop1 = nn.Dropout(o.dropout)
  self.norm2 = nn.LayerNorm(o.width, { eps = o.eps })
  self.mlp = Mlp(o)
  self.drop2 = nn.Dropout(o.dropout)
end
function Block:forward(x)
  x = x + self.drop1(self.attn(self.norm1(x)))
  return x + self.drop2(self.mlp(self.norm2(x)))
end

local Gpt = nn.Module "Gpt"
function Gpt:init(o)
  self.tied = o.tied
  self.embed = nn.Embedding(o.vocab, o.width)
  self.position = nn.Embedding(o.positions, o.width)
  self.drop = nn.Dropout(o.dropout)
  self.blocks = nn.ModuleList()
  for _ = 1, o.layers do self.blocks:append(Block(o)) end
  self.norm = nn.LayerNorm(o.width, { eps = o.eps })
  if not o.tied then self.head = nn.Linear(o.width, o.vocab, { bias = false }) end
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
  x = self.norm(x)
  if self.tied then return torch.linear(x, self.embed.weight) end
  return self.head(x)
end

-- Options of 0 follow from others: vocab from the tokenizer, positions from data.sequence, hidden is 4 width.
local function complete(o, job)
  if o.vocab == 0 then o.vocab = job.data.vocab end
  if o.positions == 0 then o.positions = job.data.sequence end
  if o.hidden == 0 then o.hidden = 4 * o.width end
  return o
end

return {
  options = {
    layers = 4, width = 256, heads = 4, hidden = 0, vocab = 0, positions = 0,
    dropout = 0, bias = true, tied = true, eps = 1e-5,
  },

  batch = function(o, job)
    o = complete(o, job)
    return {
      tokens = { shape = { job.data.sequence }, classes = o.vocab },
      labels = { shape = { job.data.sequence }, classes = o.vocab, shift = 1 },
    }
  end,

  model = function(o, job) return Gpt(complete(o, job)) end,

  forward = function(net, batch)
    local logits = net(batch.tokens)
    local loss -- nil without labels (`perigee sample`)
    if batch.labels then
      loss = torch.cross_entropy_loss(logits:flatten(0, 1), batch.labels:flatten())
    end
    return { loss = loss, logits = logits }
  end,
}
