# Steps of PyTorch on this host, as a careful user takes them: scaled_dot_product_attention, fused AdamW, autocast to bf16 where the row
# asks for it, and DDP over Gloo with gradients that are views of its buckets. The argument is JSON (bench_host); rank 0's last line is
# JSON: the seconds and the loss of each step.
import json
import os
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "gpu_check"))

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch_gpt import Gpt, load, read_tokens, read_weights  # noqa: E402

SET = json.loads(sys.argv[1])
RANK, RANKS = int(os.environ.get("RANK", 0)), SET["ranks"]


def main():
    torch.set_num_threads(SET["threads"])
    if RANKS > 1:
        torch.distributed.init_process_group("gloo", init_method=SET["meet"], rank=RANK, world_size=RANKS)
    model = Gpt(SET)
    load(model, read_weights(SET["weights"]), SET)
    if RANKS > 1:
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    step_of = torch.compile(model) if SET["how"] == "compile" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=SET["lr"], betas=SET["betas"], eps=SET["eps"],
                                  weight_decay=SET["weight_decay"], fused=True)
    ids, length, own = read_tokens(SET["tokens"]), SET["sequence"], SET["batch"] // RANKS
    losses, times = [], []
    for step in range(SET["steps"]):
        first = (step * SET["batch"] + RANK * own) * length
        window = ids[first:first + own * length + 1]
        begin = time.perf_counter()
        tokens, labels = window[:-1].view(-1, length), window[1:].view(-1, length)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=SET["bf16"]):
            loss = step_of(tokens, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), SET["clip_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    mean = torch.tensor(losses, dtype=torch.float64)
    if RANKS > 1:
        torch.distributed.all_reduce(mean)
        torch.distributed.destroy_process_group()
    if RANK == 0:
        print(json.dumps({"step_s": times, "losses": (mean / RANKS).tolist()}))


main()
