#!/usr/bin/env python3
"""Makes adapters of PEFT for models of tests/train/hf/fixtures, with their losses and gradients.

Each folder has an adapter as save_pretrained writes it, and values.json: for float64 and float32 the
loss on the batch of the model's values.json, and of logits and gradients what make_fixtures.py has.
    python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install torch==2.11.0 transformers==5.24.0 peft==0.21.2
    /tmp/venv/bin/python tests/train/hf/make_adapter_fixtures.py
With --check MODEL ADAPTER VALUES, PEFT loads an exported adapter and compares its logits.
"""

import json
import pathlib
import sys

import peft
import torch
import transformers
from safetensors.torch import load_file

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from make_fixtures import HERE, MODELS, batch, make, summary  # noqa: E402

ADAPTERS = {
    "adapter-llama": ("llama", dict(r=4, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"],
                                    modules_to_save=["lm_head"])),
    "adapter-gpt2": ("gpt2", dict(r=3, lora_alpha=5, use_rslora=True, fan_in_fan_out=True,
                                  target_modules=["c_attn", "h.1.mlp.c_proj"])),
}


def adapted(name, options, dtype):
    model, restore = make(*MODELS[name], dtype)
    model.load_state_dict(load_file(HERE / name / "model.safetensors"), strict=False)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options),
                                autocast_adapter_dtype=False).to(dtype)
    draw = torch.Generator().manual_seed(11)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data = (0.3 * torch.randn(weight.shape, generator=draw, dtype=torch.float32)).to(dtype)
    return model.eval(), restore


def name_in_file(name):
    return name.replace(".modules_to_save", "").replace(".default", "")


def values(model):
    tokens, labels = batch()
    logits = model(input_ids=tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    loss.backward()
    return {"loss": loss.item(), "logits": summary(logits),
            "gradients": {name_in_file(n): summary(p.grad)
                          for n, p in model.named_parameters() if p.requires_grad}}


def check(base, folder, values_file):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, attn_implementation="eager", dtype=torch.float32)
    model = peft.PeftModel.from_pretrained(model, folder).eval()
    got = summary(model(input_ids=batch()[0], use_cache=False).logits)
    wanted = json.loads(pathlib.Path(values_file).read_text())["float32"]["logits"]
    same = all(abs(a - b) <= 1e-5 * (1 + abs(b)) for a, b in zip(got, wanted))
    print(folder, "equal logits" if same else f"DIFFERENT LOGITS: {got}, not {wanted}")
    return same


def main(names):
    if names[:1] == ["--check"]:
        sys.exit(not check(*names[1:]))
    for folder, (name, options) in ADAPTERS.items():
        text = {}
        for dtype in (torch.float64, torch.float32):
            model, restore = adapted(name, options, dtype)
            text[str(dtype).removeprefix("torch.")] = values(model)
            restore()
        model.base_model.model.config._name_or_path = name
        model.peft_config["default"].base_model_name_or_path = name
        model.save_pretrained(HERE / folder)
        (HERE / folder / "README.md").unlink(missing_ok=True)
        (HERE / folder / "values.json").write_text(json.dumps(text) + "\n")
        print(folder, text["float64"]["loss"], text["float32"]["loss"])


if __name__ == "__main__":
    main(sys.argv[1:])
