# The rows of bench_host, and the work that a step of each cannot avoid.
SMALL = {"layers": 8, "width": 512, "heads": 8, "vocab": 8192, "sequence": 64, "batch": 4}
GPT2 = {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "sequence": 1024, "batch": 1}

# `goal`: how many times PyTorch's speed. `like`: the largest difference of a loss.
ROWS = {
    "small": {**SMALL, "ranks": 1, "bf16": False, "goal": 1.4, "case": "GPT of 29.4M, 1 rank with all threads, float32"},
    "small2": {**SMALL, "ranks": 2, "bf16": False, "goal": 1.7, "case": "GPT of 29.4M, 2 ranks, float32"},
    "small4": {**SMALL, "ranks": 4, "bf16": False, "goal": 2.2, "case": "GPT of 29.4M, 4 ranks, float32"},
    "small-bf16": {**SMALL, "ranks": 1, "bf16": True, "goal": 1.6, "case": "GPT of 29.4M, 1 rank with all threads, bf16"},
    "gpt2": {**GPT2, "ranks": 1, "bf16": False, "goal": 1.3, "case": "GPT-2 124M, 1 rank with all threads, float32"},
    "gpt2-bf16": {**GPT2, "ranks": 1, "bf16": True, "goal": 1.4, "case": "GPT-2 124M, 1 rank with all threads, bf16"},
}
for row in ROWS.values():
    row["like"] = 0.05 if row["bf16"] else 2e-4


def parameters(row):
    width = row["width"]
    return (row["vocab"] + row["sequence"]) * width + row["layers"] * (12 * width * width + 13 * width) + 2 * width


# Returns the products of one rank's step: of each linear layer the output and both gradients, and of attention six products of
# [sequence, sequence] or [sequence, width / heads] of each head, half of them since the mask is causal.
def products(row):
    tokens, width = row["batch"] * row["sequence"] // row["ranks"], row["width"]
    found = []
    for inner, outer, count in ((width, 3 * width, row["layers"]), (width, width, row["layers"]), (width, 4 * width, row["layers"]),
                                (4 * width, width, row["layers"]), (width, row["vocab"], 1)):
        found += [{"what": "output", "m": tokens, "k": inner, "n": outer, "count": count},
                  {"what": "input gradient", "m": tokens, "k": outer, "n": inner, "count": count},
                  {"what": "weight gradient", "m": outer, "k": tokens, "n": inner, "count": count}]
    heads, length, part = row["batch"] * row["heads"] // row["ranks"], row["sequence"], row["width"] // row["heads"]
    found += [{"what": "attention scores", "batch": heads, "m": length, "k": part, "n": length, "count": 1.0 * row["layers"]},
              {"what": "attention values", "batch": heads, "m": length, "k": length, "n": part, "count": 2.0 * row["layers"]}]
    return found


# Returns the bytes that a step moves at least, of all ranks of the host: AdamW reads weight, gradient and two states and writes all
# but the gradient, and each further rank's gradients are read once. In bf16 gradients have 2 bytes, and weights are written in bf16, too.
def bytes_moved(row):
    return parameters(row) * (28 + 4 * (row["ranks"] - 1))
