#!/usr/bin/env python3
"""Makes tests/train/generate/fixtures/greedy.json: what transformers' generate says after a prompt.

For each model of tests/train/hf/fixtures in float64: prompts of different lengths, and the greedy
tokens that follow each up to 16 tokens in all. Window and positions are the model's own.
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch==2.11.0 transformers==5.24.0
    /tmp/venv/bin/python tests/train/generate/make_fixtures.py
"""

import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).parent
MODELS = ["llama", "mistral", "qwen2", "qwen3", "gemma", "gpt2", "mixtral"]
PROMPTS = [[3], [1, 2, 3, 4], [20, 7, 7, 19, 0, 5, 11], [9, 8, 23, 6, 2, 14, 10, 17, 21, 4, 1]]


def main():
    torch.set_default_dtype(torch.float64)
    found = {}
    for name in MODELS:
        folder = HERE.parent / "hf" / "fixtures" / name
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float64, attn_implementation="eager",
            experts_implementation="eager").eval()
        rows = []
        for prompt in PROMPTS:
            tokens = torch.tensor([prompt])
            # Without a mask, tokens that equal pad_token_id would be hidden.
            out = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                                 max_length=16, eos_token_id=None, pad_token_id=0)
            rows.append({"prompt": prompt, "greedy": out[0, len(prompt):].tolist()})
        found[name] = rows
    lines = ",\n".join(f' "{name}": {json.dumps(rows)}' for name, rows in found.items())
    (HERE / "fixtures" / "greedy.json").write_text("{\n" + lines + "\n}\n")


main()
