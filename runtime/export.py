"""Exports a PyTorch model whose forward returns its loss, for `kind = "exported"` of a job (runtime/exported.md)."""
import sys

import torch


def export(model, batch, path):
    """Writes `model` to `path` (.pt2). `batch`: forward's arguments by name, tensors of at least two samples; dim 0 is the samples."""
    if not torch.__version__.startswith("2.11."):
        print(f"warning: Perigee reads archives of PyTorch 2.11, but this is {torch.__version__}", file=sys.stderr)
    samples = torch.export.Dim("samples")
    shapes = {name: {0: samples} for name in batch}
    program = torch.export.export(model, (), batch, dynamic_shapes=shapes, strict=False)
    torch.export.save(program, path)
