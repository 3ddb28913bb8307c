# GPT-2 in PyTorch, as a user of PyTorch writes it: autocast to bf16, fused AdamW, scaled_dot_product_attention. The argument is JSON
# (gpt2.py); the last line of the output is JSON.
import json
import statistics
import struct
import sys
import time

import torch
from torch import nn
from torch.nn import functional

SET = json.loads(sys.argv[1])
DEVICE, WIDTH, HEADS, LENGTH = SET["device"], SET["width"], SET["heads"], SET["sequence"]
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F64": torch.float64}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        shape = (x.shape[0], LENGTH, HEADS, WIDTH // HEADS)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(WIDTH, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(SET["vocab"], WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(SET["layers"]))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens, labels):
        x = self.embed(tokens) + self.position(torch.arange(LENGTH, device=tokens.device))
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
def load(model, tensors):
    state = {}
    for name, tensor in tensors.items():
        name = name.replace(".attn.", ".").replace(".mlp.", ".")
        if ".qkv." in name:
            tensor = tensor.view(HEADS, 3, WIDTH // HEADS, -1).transpose(0, 1).reshape(tensor.shape)
        state[name] = tensor
    model.load_state_dict(state)


def main():
    model = Gpt()
    load(model, read_weights(SET["weights"]))
    model.to(DEVICE)
    step_of = torch.compile(model) if SET["how"] == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=SET["lr"], betas=SET["betas"], eps=SET["eps"],
                                  weight_decay=SET["weight_decay"], fused=DEVICE == "cuda")
    ids = torch.frombuffer(bytearray(open(SET["tokens"], "rb").read()), dtype=torch.int16).to(torch.int64) & 0xFFFF
    wait = torch.cuda.synchronize if DEVICE == "cuda" else lambda: None
    losses, times = [], []
    for step in range(SET["steps"]):
        begin = step * SET["batch"] * LENGTH
        window = ids[begin:begin + SET["batch"] * LENGTH + 1]
        tokens, labels = window[:-1].view(-1, LENGTH), window[1:].view(-1, LENGTH)
        if DEVICE == "cuda":
            tokens, labels = tokens.pin_memory(), labels.pin_memory()
            if step == SET["warm_up"]:
                torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        tokens, labels = tokens.to(DEVICE, non_blocking=True), labels.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = step_of(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), SET["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        times.append(time.perf_counter() - start)
        losses.append(loss.item())
    peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
    print(json.dumps({"ms": 1e3 * statistics.median(times[SET["warm_up"]:]), "losses": losses, "peak_bytes": peak}))


main()
