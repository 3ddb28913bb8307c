-- The encoder-decoder of "Attention is all you need" (Vaswani et al. 2017), pre-norm: the encoder reads `source`, the
-- decoder `target` up to each position and, by cross attention, the whole output of the encoder. Its scopes are
-- encoder.blocks.N and decoder.blocks.N.
local nn, torch = require "perigee.nn", require "perigee.torch"

local Attention = nn.Module "Attention"
function Attention:init(o, causal)
  self.heads, self.causal = o.heads, causal
  self.query = nn.Linear(o.width, o.width)
  self.key = nn.Linear(o.width, o.width)
  self.value = nn.Linear(o.width, o.width)
  self.out = nn.Linear(o.width, o.width)
end
-- x [b, s, w] attends to `from` [b, t, w].
function Attention:forward(x, from)
  local function heads(y) return y:unflatten(2, { self.heads, -1 }):transpose(1, 2) end
  local y = torch.scaled_dot_product_attention(heads(self.query(x)), heads(self.key(from)),
                                               heads(self.value(from)), nil, 0, self.causal)
  return self.out(y:transpose(1, 2):flatten(2))
end

local function mlp(o)
  return nn.Sequential { nn.Linear(o.width, o.hidden), nn.ReLU(), nn.Linear(o.hidden, o.width) }
end

local EncoderBlock = nn.Module "EncoderBlock"
function EncoderBlock:init(o)
  self.norm1 = nn.LayerNorm(o.width)
  self.attn = Attention(o, false)
  self.norm2 = nn.LayerNorm(o.width)
  self.mlp = mlp(o)
  self.drop = nn.Dropout(o.dropout)
end
function EncoderBlock:forward(x)
  local y = self.norm1(x)
  x = x + self.drop(self.attn(y, y))
  return x + self.drop(self.mlp(self.norm2(x)))
end

local DecoderBlock = nn.Module "DecoderBlock"
function DecoderBlock:init(o)
  self.norm1 = nn.LayerNorm(o.width)
  self.attn = Attention(o, true)
  self.norm2 = nn.LayerNorm(o.width)
  self.cross = Attention(o, false)
  self.norm3 = nn.LayerNorm(o.width)
  self.mlp = mlp(o)
  self.drop = nn.Dropout(o.dropout)
end
function DecoderBlock:forward(x, memory)
  local y = self.norm1(x)
  x = x + self.drop(self.attn(y, y))
  x = x + self.drop(self.cross(self.norm2(x), memory))
  return x + self.drop(self.mlp(self.norm3(x)))
end

-- Tokens to vectors, with the paper's sines and cosines for positions.
local Embed = nn.Module "Embed"
function Embed:init(o)
  self.width = o.width
  self.tokens = nn.Embedding(o.vocab, o.width)
  nn.init.normal_(self.tokens.weight, 0, 1 / math.sqrt(o.width))
end
function Embed:forward(tokens)
  local rows = {}
  for at = 1, tokens:size(1) do
    rows[at] = {}
    for i = 1, self.width do
      local angle = (at - 1) / 10000 ^ ((i - 1 - (i - 1) % 2) / self.width)
      rows[at][i] = i % 2 == 1 and math.sin(angle) or math.cos(angle)
    end
  end
  local x = self.tokens(tokens)
  return x * math.sqrt(self.width) + torch.tensor(rows, { dtype = x.dtype })
end

local Stack = nn.Module "Stack"
function Stack:init(o, layers, block)
  self.embed = Embed(o)
  self.drop = nn.Dropout(o.dropout)
  self.blocks = nn.ModuleList()
  for _ = 1, layers do self.blocks:append(block(o)) end
  self.norm = nn.LayerNorm(o.width)
end
function Stack:forward(tokens, memory)
  local x = self.drop(self.embed(tokens))
  for _, block in self.blocks:each() do x = block(x, memory) end
  return self.norm(x)
end

local Transformer = nn.Module "Transformer"
function Transformer:init(o)
  self.encoder = Stack(o, o.layers, EncoderBlock)
  self.decoder = Stack(o, o.layers, DecoderBlock)
  self.head = nn.Linear(o.width, o.vocab, { bias = false })
end
function Transformer:forward(source, target) -- [b, s], [b, t] -> logits [b, t, v]
  return self.head(self.decoder(target, self.encoder(source)))
end

return {
  options = { layers = 2, width = 128, heads = 4, hidden = 512, vocab = 256, dropout = 0 },

  batch = function(o, job)
    local shape = { job.data.sequence }
    return {
      source = { shape = shape, classes = o.vocab },
      target = { shape = shape, classes = o.vocab },
      labels = { shape = shape, classes = o.vocab, shift = 1 },
    }
  end,

  model = function(o) return Transformer(o) end,

  forward = function(net, batch)
    local logits = net(batch.source, batch.target)
    local loss = torch.cross_entropy_loss(logits:flatten(0, 1), batch.labels:flatten())
    return { loss = loss, logits = logits }
  end,
}
