# GPT-2 124M (16 samples of 1024 tokens, bf16, AdamW, clipping) against PyTorch, eager and compiled, from the same weights and tokens.
import array
import json
import random
import statistics

from jobs import metrics, train, write_tables
from runner import Failed, Late

SIZES = {
    "cuda": {"layers": 12, "width": 768, "heads": 12, "vocab": 50257, "batch": 16, "sequence": 1024, "steps": 20},
    "cpu": {"layers": 2, "width": 64, "heads": 4, "vocab": 512, "batch": 2, "sequence": 32, "steps": 6},
}
OPTIMIZER = {"name": "adamw", "lr": 6e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0}
WARM_UP = 4  # steps that are not timed
LIKE_TORCH = 0.05  # largest difference of a loss: sums in bf16 are in another order
# Products that compute GELU.
ACTIVATIONS = """local m = require "perigee.methods"
return { m.parallel_mode {}, m.amp_native { dtype = "bf16" }, m.overlap { activations = true } }
"""
# Weights that are kept in bf16, too.
KEPT = """local m = require "perigee.methods"
return { m.parallel_mode {}, m.amp_native { dtype = "bf16", keep_weights = true } }
"""
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}  # dense bf16 products


def gpt2(machine, session):
    size = SIZES[machine.device]
    tokens = session.scratch / "gpt2.u16"
    draw = random.Random(1)
    # A rule with noise, so that losses fall.
    values = [0]
    for _ in range(size["batch"] * size["sequence"] * size["steps"]):
        values.append((values[-1] * 31 + 7) % size["vocab"] if draw.random() < 0.5 else draw.randrange(size["vocab"]))
    array.array("H", values).tofile(tokens.open("wb"))
    tables = {
        "model": {"kind": "gpt", **{key: size[key] for key in ("layers", "width", "heads", "vocab")}},
        "data": {"tokens": [str(tokens)], "sequence": size["sequence"], "sampler": "sequential", "validation": 0.0},
        "batch": {"global": size["batch"], "micro": size["batch"]},
        "optimizer": OPTIMIZER,
        "lr_schedule": {"kind": "constant", "warmup": 0},
        "train": {"steps": size["steps"], "validate_every": 0, "checkpoint_every": 0},
    }
    # The initial weights: a step that changes nothing.
    still = {**tables, "optimizer": {**OPTIMIZER, "lr": 0.0, "weight_decay": 0.0}, "train": {**tables["train"], "steps": 1},
             "batch": {"global": 1, "micro": 1}}
    first = train(machine, session, write_tables(session, "gpt2-weights", still), machine.device, 1)
    weights = session.scratch / "gpt2.safetensors"
    session.command([machine.build / "perigee", "export", first, "-o", weights], machine.environment())

    tables["train"]["weights"] = str(weights)
    job = write_tables(session, "gpt2", tables, strategy="amp_native")
    run = train(machine, session, job, machine.device, 1)
    steps = metrics(run)
    figures = of_run(machine, size, "Perigee", run)
    figures["Perigee last loss"] = steps[-1]["loss"]
    against_torch(machine, session, {**size, "tokens": str(tokens), "weights": str(weights)}, steps, figures)
    for way, text in (("activations", ACTIVATIONS), ("kept", KEPT)):
        strategy = session.scratch / f"{way}.lua"
        strategy.write_text(text)
        job = write_tables(session, f"gpt2-{way}", tables, strategy=str(strategy))
        compared(machine, session, size, way, job, steps, figures)
    # On a GPU a step that cannot be recorded is an error.
    graphs = "true" if machine.device == "cuda" else "auto"
    job = write_tables(session, "gpt2-graphs", {**tables, "cluster": {"graphs": graphs}}, strategy="amp_native")
    compared(machine, session, size, "graphs", job, steps, figures)
    return figures


# Returns the figures of a run of Perigee.
def of_run(machine, size, name, run):
    timed = metrics(run)[WARM_UP:]
    figures = rates(machine, size, name, 1e3 * statistics.median(step["step_s"] for step in timed))
    if machine.device == "cuda":
        figures[f"{name} host ms a step"] = 1e3 * statistics.median(step["submit_s"][0] for step in timed)
    figures[f"{name} peak bytes"] = metrics(run, summary=True)["peak_bytes"][0]
    return figures


# Adds the figures of a job that trains in another way, whose losses must be those of `steps`.
def compared(machine, session, size, way, job, steps, figures):
    try:
        run = train(machine, session, job, machine.device, 1)
    except (Failed, Late) as error:
        raise Failed(f"with {way}: {error or 'ran past the time'}", figures) from error
    figures.update(of_run(machine, size, f"Perigee, {way},", run))
    most = max(abs(a["loss"] - b["loss"]) for a, b in zip(metrics(run), steps, strict=True))
    figures[f"Perigee, {way}, largest difference of losses"] = most
    if not most <= LIKE_TORCH:
        raise Failed(f"a loss with {way} differs from that without by {most:.2g}", figures)


# Adds the figures of PyTorch, where python3 has it.
def against_torch(machine, session, size, steps, figures):
    if not machine.python_torch():
        figures["PyTorch"] = "absent: python3 does not import torch"
        return
    for how in ("eager", "compile"):
        if how == "compile" and machine.device == "cpu":
            continue
        setting = {**size, **OPTIMIZER, "device": machine.device, "how": how, "warm_up": WARM_UP}
        try:
            text = session.command(["python3", machine.root / "tools/gpu_check/torch_gpt2.py", json.dumps(setting)])
        except (Failed, Late) as error:
            raise Failed(f"PyTorch, {how}: {error or 'ran past the time'}", figures) from error
        rival = json.loads(text.strip().split("\n")[-1])
        figures.update(rates(machine, size, f"torch {how}", rival["ms"]))
        figures[f"torch {how} peak bytes"] = rival["peak_bytes"]
        figures[f"torch {how} ms / Perigee's"] = rival["ms"] / figures["Perigee ms a step"]
        most = max(abs(a - b["loss"]) for a, b in zip(rival["losses"], steps, strict=True))
        figures[f"torch {how}, largest difference of losses"] = most
        if not most <= LIKE_TORCH:
            raise Failed(f"a loss differs from that of PyTorch, {how}, by {most:.2g}", figures)


# Returns the rates of a step of `ms`. MFU counts (6 N + 6 layers width sequence) operations for a token.
def rates(machine, size, name, ms):
    tokens = size["batch"] * size["sequence"] / ms * 1e3
    width, layers = size["width"], size["layers"]
    parameters = size["vocab"] * width + size["sequence"] * width + layers * (12 * width * width + 13 * width) + 2 * width
    operations = tokens * (6 * parameters + 6 * layers * width * size["sequence"])
    figures = {f"{name} ms a step": ms, f"{name} tokens a second": tokens}
    peak = next((rate for part, rate in PEAKS.items() if part in machine.name()), None)
    if peak:
        figures[f"{name} MFU"] = operations / peak
    if machine.ceilings:
        figures[f"{name} rate / that of a bf16 product"] = operations / machine.ceilings["bf16_product_per_s"]
    return figures
