#!/usr/bin/env python3
"""Fills tests/optim/fixtures/*.json with the weights that torch.optim's optimizers reach in float64.

Each file names a class of torch.optim and cases of its options; needs torch 2.11.0:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch==2.11.0
    /tmp/venv/bin/python tests/optim/make_fixtures.py [FILE...]
"""

import json
import pathlib
import sys

import torch

ELEMENTS = 6
STEPS = [1, 2, 3, 5, 10, 20]


def first_weight(i):
    return ((i * 5) % 7 - 3) / 4


def gradient(i, step):
    return ((i * 7 + step * 13) % 11 - 5) / 8


def train(kind, options):
    weights = torch.nn.Parameter(torch.tensor([first_weight(i) for i in range(ELEMENTS)]))
    optimizer = getattr(torch.optim, kind)([weights], **options)
    reached = []
    for step in range(1, STEPS[-1] + 1):
        weights.grad = torch.tensor([gradient(i, step) for i in range(ELEMENTS)])
        optimizer.step()
        if step in STEPS:
            reached.append(weights.tolist())
    return reached


def fill(path):
    fixture = json.loads(path.read_text())
    for case in fixture["cases"]:
        options = dict(case["options"])
        if "beta1" in options:
            options["betas"] = (options.pop("beta1"), options.pop("beta2"))
        case["weights"] = train(fixture["class"], options)
    rows = ",\n  ".join(
        '{"options": %s, "weights": [\n    %s]}'
        % (json.dumps(case["options"]), ",\n    ".join(json.dumps(row) for row in case["weights"]))
        for case in fixture["cases"]
    )
    path.write_text(
        '{"torch": "%s", "class": "%s", "steps": %s, "cases": [\n  %s]}\n'
        % (torch.__version__.split("+")[0], fixture["class"], json.dumps(STEPS), rows)
    )


if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    folder = pathlib.Path(__file__).parent / "fixtures"
    for file in [pathlib.Path(a) for a in sys.argv[1:]] or sorted(folder.glob("*.json")):
        fill(file)
