"""A small language model in PyTorch, written as model.pt2 for job.toml: python3 model.py (PyTorch 2.11; Perigee needs no Python)."""
import pathlib

import torch
from torch import nn
from torch.nn import functional as F

from export import export

VOCABULARY, SEQUENCE, WIDTH, HEADS, LAYERS = 256, 64, 32, 4, 2  # SEQUENCE is data.sequence of job.toml


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        heads = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens, labels):  # names of the batch's tensors; the result is the loss
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), labels.flatten())


if __name__ == "__main__":
    example = torch.randint(VOCABULARY, (2, SEQUENCE))
    export(Net(), {"tokens": example, "labels": example}, pathlib.Path(__file__).with_name("model.pt2"))
