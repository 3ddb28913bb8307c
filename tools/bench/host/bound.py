# The least time of a step on this machine: each product at the best rate of several libraries, and the bytes that must move at the rate
# of a copy. The argument is JSON (bench_host); the last line is JSON: products_s (of one rank's step), copy_bytes_per_s, and for each
# product its library and rate. Several processes at once measure what that many ranks reach together.
import json
import sys
import time

import torch

SET = json.loads(sys.argv[1])
TYPE = torch.bfloat16 if SET["bf16"] else torch.float32


# Returns the fewest seconds of each candidate, a function and the operands that a step has just computed. They are interleaved. Between
# calls `cold` bytes are written, more than the caches hold, and those operands read: the others come from memory, as in a step.
def fastest(candidates):
    cold = torch.empty(SET["cold_bytes"] // 4)
    seconds = dict.fromkeys(candidates, float("inf"))
    for run in range(SET["runs"]):
        for name, (call, *warm) in candidates.items():
            cold.fill_(run)
            for operand in warm:
                operand.sum()
            begin = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return seconds


# Returns the ways to multiply [m, k] by [k, n]: LibTorch's mm with each operand as it may lie (MKL for float32, oneDNN for bf16),
# oneDNN with the right matrix as it lies and packed before, and MKL with a packed one.
def ways(m, k, n):
    a, weight = torch.randn(m, k, dtype=TYPE), torch.randn(n, k, dtype=TYPE)
    b, out = weight.t().contiguous(), torch.empty(m, n, dtype=TYPE)
    found = {}
    for left, x in (("n", a), ("t", a.t().contiguous().t())):
        for right, y in (("n", b), ("t", weight.t())):
            found[f"mm {left}{right}"] = lambda x=x, y=y: torch.mm(x, y, out=out), x
    onednn, packed = torch.ops.mkldnn, torch.ops.mkldnn._reorder_linear_weight(weight, m)
    found["oneDNN"] = lambda: onednn._linear_pointwise(a, weight, None, "none", [], ""), a
    found["oneDNN, packed"] = lambda: onednn._linear_pointwise(a, packed, None, "none", [], ""), a
    if TYPE == torch.float32 and torch.backends.mkl.is_available():
        ready = torch.ops.mkl._mkl_reorder_linear_weight(weight, m)
        found["MKL, packed"] = lambda: torch.ops.mkl._mkl_linear(a, ready, weight, None, m), a
    return found


def main():
    torch.set_num_threads(SET["threads"])
    torch.set_grad_enabled(False)
    total, rows = 0.0, []
    for product in SET["products"]:  # [m, k] x [k, n] of `batch` independent matrices, `count` of them in a step
        m, k, n, count = (product[key] for key in ("m", "k", "n", "count"))
        if product.get("batch"):
            a, b = torch.randn(product["batch"], m, k, dtype=TYPE), torch.randn(product["batch"], k, n, dtype=TYPE)
            found = fastest({"bmm": (lambda: torch.bmm(a, b), a, b)})
        else:
            found = fastest(ways(m, k, n))
        best = min(found, key=found.get)
        work = 2 * m * k * n * product.get("batch", 1)
        total += count * found[best]
        rows.append({**product, "best": best, "ms": 1e3 * found[best], "gflops": 1e-9 * work / found[best],
                     "all_ms": {name: 1e3 * seconds for name, seconds in found.items()}})
    source, target = torch.zeros(SET["copy_bytes"] // 4), torch.zeros(SET["copy_bytes"] // 4)
    seconds = fastest({"copy": (lambda: target.copy_(source),)})["copy"]
    print(json.dumps({"products_s": total, "copy_bytes_per_s": 2 * SET["copy_bytes"] / seconds, "products": rows}))


main()
