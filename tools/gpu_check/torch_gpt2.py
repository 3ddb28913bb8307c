# GPT-2 trained by PyTorch as a user of it does: autocast to bf16, fused AdamW, scaled_dot_product_attention. The argument is JSON
# (gpt2.py); the last line of the output is JSON.
import json
import statistics
import sys
import time

import torch
from torch import nn
from torch_gpt import Gpt, load, read_tokens, read_weights

SET = json.loads(sys.argv[1])
DEVICE, LENGTH = SET["device"], SET["sequence"]


def main():
    model = Gpt(SET)
    load(model, read_weights(SET["weights"]), SET)
    model.to(DEVICE)
    step_of = torch.compile(model) if SET["how"] == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=SET["lr"], betas=SET["betas"], eps=SET["eps"],
                                  weight_decay=SET["weight_decay"], fused=DEVICE == "cuda")
    ids = read_tokens(SET["tokens"])
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
