# GPT-2 in PyTorch, as a user of PyTorch writes it, with the weights of Perigee's model. `size`: layers, width, heads, vocab, sequence.
import json
import struct

import torch
from torch import nn
from torch.nn import functional

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F64": torch.float64}


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        width = self.width = size["width"]
        self.heads = size["heads"]
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        shape = (*x.shape[:2], self.heads, self.width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(self.width, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, size):
        super().__init__()
        width = size["width"]
        self.embed, self.position = nn.Embedding(size["vocab"], width), nn.Embedding(size["sequence"], width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size["layers"]))
        self.norm = nn.LayerNorm(width)

    # Returns the mean loss.
    def forward(self, tokens, labels):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = functional.linear(self.norm(x), self.embed.weight)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


# Returns the tensors of a safetensors file.
def read_weights(file):
    data = open(file, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            flat = torch.frombuffer(bytearray(data[8 + length + begin:8 + length + end]), dtype=TYPES[entry["dtype"]])
            tensors[name] = flat.reshape(entry["shape"])
    return tensors


# Perigee's layers by the names here. Its query, key and value are adjacent for each head; here the queries of all heads come first.
def load(model, tensors, size):
    state = {}
    for name, tensor in tensors.items():
        name = name.replace(".attn.", ".").replace(".mlp.", ".")
        if ".qkv." in name:
            tensor = tensor.view(size["heads"], 3, size["width"] // size["heads"], -1).transpose(0, 1).reshape(tensor.shape)
        state[name] = tensor
    model.load_state_dict(state)


# Returns the ids of a file of 16-bit tokens.
def read_tokens(file):
    return torch.frombuffer(bytearray(open(file, "rb").read()), dtype=torch.int16).to(torch.int64) & 0xFFFF
