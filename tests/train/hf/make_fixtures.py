#!/usr/bin/env python3
"""Makes tests/train/hf/fixtures: tiny random models of transformers, and their losses and gradients.

Each folder has a model as save_pretrained writes it, and values.json: a batch, and for float64 and
float32 the loss, and of the logits and gradients the norm and two projections (`summary`). The
float64 values are those of transformers with its casts to float32 widened to float64.
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch==2.11.0 transformers==5.24.0
    /tmp/venv/bin/python tests/train/hf/make_fixtures.py [NAME...]
With --check DIR it loads an exported folder and prints whether its logits are those of values.json.
"""

import importlib
import json
import pathlib
import sys

import torch
import transformers

HERE = pathlib.Path(__file__).parent / "fixtures"
SIZES = dict(vocab_size=24, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16)
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None, pad_token_id=None)


def rope(kind, **more):
    return dict(rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **more})


MODELS = {
    "llama": ("llama", "Llama", dict(SIZES, head_dim=8, mlp_bias=True, attention_bias=True)),
    "mistral": ("mistral", "Mistral", dict(SIZES, sliding_window=3)),
    "qwen2": ("qwen2", "Qwen2", dict(SIZES, use_sliding_window=True, sliding_window=4,
                                     max_window_layers=1, tie_word_embeddings=True)),
    "qwen3": ("qwen3", "Qwen3", dict(SIZES, head_dim=8)),
    "gemma": ("gemma", "Gemma", dict(SIZES, head_dim=8)),
    "gpt2": ("gpt2", "GPT2", dict(vocab_size=24, n_embd=16, n_inner=24, n_layer=2, n_head=4,
                                  n_positions=16, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0)),
    # As the built-in llama.
    "plain-llama": ("llama", "Llama", dict(SIZES, num_attention_heads=2)),
    "mixtral": ("mixtral", "Mixtral", dict(SIZES, num_local_experts=4, num_experts_per_tok=2)),
    # The loss has the router's balance loss.
    "mixtral-balanced": ("mixtral", "Mixtral", dict(SIZES, num_local_experts=4, num_experts_per_tok=2,
                                                    num_hidden_layers=1, output_router_logits=True,
                                                    router_aux_loss_coef=0.5)),
}
# Configs for the weights of llama.
LLAMA = MODELS["llama"][2]
VARIANTS = {
    "llama-linear": dict(LLAMA, **rope("linear", factor=2.5)),
    "llama-dynamic": dict(LLAMA, **rope("dynamic", factor=3.0), max_position_embeddings=4),
    "llama-yarn": dict(LLAMA, **rope("yarn", factor=4.0, original_max_position_embeddings=4,
                                     beta_fast=2.0, beta_slow=0.05)),
    "llama-longrope": dict(LLAMA, **rope("longrope", original_max_position_embeddings=4,
                                         short_factor=[1.0, 1.0, 1.0, 1.0],
                                         long_factor=[1.0, 1.5, 2.5, 4.0])),
    "llama-llama3": dict(LLAMA, **rope("llama3", factor=8.0, original_max_position_embeddings=64,
                                       low_freq_factor=1.0, high_freq_factor=4.0)),
    "llama-gelu": dict(LLAMA, hidden_act="gelu"),
}


def summary(tensor):
    flat = tensor.detach().double().flatten()
    places = torch.arange(flat.numel(), dtype=torch.float64)
    return [flat.norm().item(), (flat * torch.sin(places + 1)).sum().item(),
            (flat * torch.cos(2 * places + 1)).sum().item()]


class Wide:
    """torch, whose float32 is float64."""

    def __getattr__(self, name):
        return torch.float64 if name in ("float32", "float") else getattr(torch, name)


def make(module, name, config, dtype):
    code = [importlib.import_module(f"transformers.models.{module}.modeling_{module}"),
            importlib.import_module("transformers.modeling_rope_utils")]
    narrow = torch.Tensor.float
    if dtype == torch.float64:
        torch.Tensor.float = torch.Tensor.double
    for one in code:
        one.torch = Wide() if dtype == torch.float64 else torch
    torch.set_default_dtype(dtype)
    config = getattr(transformers, name + "Config")(**config, **NO_TOKENS)
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    suffix = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    model = getattr(transformers, name + suffix)(config).to(dtype)

    def restore():
        torch.Tensor.float = narrow
        torch.set_default_dtype(torch.float32)
        for one in code:
            one.torch = torch
    return model, restore


def batch():
    draw = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, 24, (8, 8), generator=draw)
    labels = torch.randint(0, 24, (8, 8), generator=draw)
    labels[torch.rand((8, 8), generator=draw, dtype=torch.float32) < 0.2] = -100
    return tokens, labels


def stored_gradients(model):
    """Gradients under the names of the files."""
    for name, weight in model.named_parameters():
        grad = weight.grad
        if name.endswith(".experts.gate_up_proj"):
            prefix = name.replace(".mlp.", ".block_sparse_moe.").removesuffix("gate_up_proj")
            for e in range(grad.shape[0]):
                gate, up = grad[e].chunk(2)
                yield f"{prefix}{e}.w1.weight", gate
                yield f"{prefix}{e}.w3.weight", up
        elif name.endswith(".experts.down_proj"):
            prefix = name.replace(".mlp.", ".block_sparse_moe.").removesuffix("down_proj")
            for e in range(grad.shape[0]):
                yield f"{prefix}{e}.w2.weight", grad[e]
        elif name.endswith(".mlp.gate.weight"):
            yield name.replace(".mlp.", ".block_sparse_moe."), grad
        else:
            yield name, grad


def values(module, name, config, state, dtype):
    model, restore = make(module, name, config, dtype)
    model.load_state_dict(state)
    tokens, labels = batch()
    output = model.eval()(tokens, use_cache=False)
    logits = output.logits
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    if getattr(model.config, "output_router_logits", False):
        loss = loss + model.config.router_aux_loss_coef * output.aux_loss
    loss.backward()
    result = {"loss": loss.item(), "logits": summary(logits),
              "gradients": {n: summary(g) for n, g in stored_gradients(model)}}
    restore()
    return result


def state_of(model):
    """Random weights in which every tensor matters."""
    draw = torch.Generator().manual_seed(7)
    state = {}
    for name, tensor in model.state_dict().items():
        around = 1.0 if tensor.dim() == 1 and tensor.abs().sum() > 0 else 0.0
        state[name] = around + 0.3 * torch.randn(tensor.shape, generator=draw)
    return state


def write(folder, module, name, config, state):
    tokens, labels = batch()
    text = {"tokens": tokens.tolist(), "labels": labels.tolist()}
    for dtype in (torch.float64, torch.float32):
        text[str(dtype).removeprefix("torch.")] = values(module, name, config, state, dtype)
    (folder / "values.json").write_text(json.dumps(text) + "\n")
    print(folder.name, text["float64"]["loss"], text["float32"]["loss"])


def check(folder, values_file):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32)
    got = summary(model.eval()(batch()[0], use_cache=False).logits)
    wanted = json.loads(pathlib.Path(values_file).read_text())["float32"]["logits"]
    same = all(abs(a - b) <= 1e-5 * (1 + abs(b)) for a, b in zip(got, wanted))
    print(folder, "equal logits" if same else f"DIFFERENT LOGITS: {got}, not {wanted}")
    return same


def main(names):
    if names[:1] == ["--check"]:
        sys.exit(not check(names[1], names[2]))
    for name, (module, kind, config) in MODELS.items():
        folder = HERE / name
        model, restore = make(module, kind, config, torch.float32)
        restore()
        state = state_of(model)
        if config.get("tie_word_embeddings", kind in ("Gemma", "GPT2")):
            tied = "transformer.wte.weight" if kind == "GPT2" else "model.embed_tokens.weight"
            state["lm_head.weight"] = state[tied]
        model.load_state_dict(state)
        if not names or name in names:
            model.save_pretrained(folder, max_shard_size="8KB" if name == "qwen2" else "1GB")
            (folder / "generation_config.json").unlink(missing_ok=True)
            write(folder, module, kind, config, state)
        if name != "llama":
            continue
        for variant, own in VARIANTS.items():
            if names and variant not in names:
                continue
            (HERE / variant).mkdir(parents=True, exist_ok=True)
            other, restore = make(module, kind, own, torch.float32)
            restore()
            other.config.save_pretrained(HERE / variant)
            write(HERE / variant, module, kind, own, state)


if __name__ == "__main__":
    main(sys.argv[1:])
