#!/usr/bin/env python3
"""Writes tests/capture/exported/fixtures: small models with random weights, exported, and PyTorch's numbers for them.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch==2.11.0 torchvision==0.26.0 transformers==5.24.0 timm==1.0.31
    /tmp/venv/bin/python tests/capture/exported/make_fixtures.py [NAME...]

expected.json has for each model: the batch (made() here and in support.cc), the loss, and of each parameter's gradient the norm and
the product with a fixed vector; `half`: the same for the first half of the samples, where batch norm couples them; `float32`:
whether the model itself computes a part in float32, or `bfloat16` in that. A model that is `fixed` is exported with that many samples and without
dynamic_shapes.
"""

import json
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = pathlib.Path(__file__).resolve().parent / "fixtures"
sys.path.insert(0, str(ROOT / "runtime"))
from export import export  # noqa: E402

VOCABULARY = 64
TOKENS = {"shape": [4, 8], "below": VOCABULARY}
LABELS = {"shape": [4, 8], "below": VOCABULARY, "from": 5, "ignore_every": 5}
CLASSES = {"shape": [4], "below": 10}
MODELS = {}


def images(size, channels=3):
    return {"shape": [4, channels, size, size]}


def model(folder, float32=False, half=False, fixed=0, single=False, **batch):
    """Registers a function that returns a model: it gets tensors of `batch` by name. `single`: float32 weights, of which the model casts some to bfloat16."""

    def register(make):
        MODELS[make.__name__] = (make, folder, float32, half, fixed, single, batch)
        return make

    return register


def made(field):
    count = 1
    for size in field["shape"]:
        count *= size
    i = torch.arange(count)
    if "below" not in field:
        return ((i * 7 + 3) % 23 - 11).to(torch.float64).div(7).reshape(field["shape"])
    value = (i * 7919 + field.get("from", 13)) % field["below"]
    if every := field.get("ignore_every", 0):
        value = torch.where(i % every == every - 1, -100, value)
    value = value.reshape(field["shape"])
    return value.bool() if field.get("boolean") else value


class Language(nn.Module):
    """A causal language model with the loss of given labels."""

    def __init__(self, inner):
        super().__init__()
        self.model = inner

    def forward(self, tokens, labels):
        logits = self.model(input_ids=tokens, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class Images(nn.Module):
    """An image classifier with its loss."""

    def __init__(self, inner):
        super().__init__()
        self.model = inner

    def forward(self, images, labels):
        output = self.model(images)
        return F.cross_entropy(getattr(output, "logits", output), labels)


def language(config, **options):
    from transformers import AutoModelForCausalLM

    return Language(AutoModelForCausalLM.from_config(config, attn_implementation=options.get("attention", "sdpa")))


SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=32,
    pad_token_id=None,
    bos_token_id=1,
    eos_token_id=2,
)


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def llama():
    from transformers import LlamaConfig

    return language(LlamaConfig(**SIZES))


@model("language", tokens=TOKENS, labels=LABELS)
def gpt2():
    from transformers import GPT2Config

    return language(
        GPT2Config(
            vocab_size=VOCABULARY, n_positions=16, n_embd=24, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
        )
    )


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def qwen2():
    from transformers import Qwen2Config

    return language(Qwen2Config(**SIZES))


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def qwen3():
    from transformers import Qwen3Config

    return language(Qwen3Config(**SIZES, head_dim=8))


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def mistral():
    from transformers import MistralConfig

    return language(MistralConfig(**SIZES, sliding_window=4))


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def gemma():
    from transformers import GemmaConfig

    return language(GemmaConfig(**SIZES, head_dim=8))


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def phi():
    from transformers import PhiConfig

    return language(PhiConfig(**SIZES, partial_rotary_factor=0.67))


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def mixtral():
    from transformers import MixtralConfig

    return language(MixtralConfig(**SIZES, num_local_experts=3, experts_implementation="batched_mm"))


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def olmo():
    from transformers import OlmoConfig

    return language(OlmoConfig(**SIZES))


@model("language", float32=True, tokens=TOKENS, labels=LABELS)
def mamba():
    from transformers import MambaConfig

    return language(MambaConfig(vocab_size=VOCABULARY, hidden_size=16, state_size=4, num_hidden_layers=2, pad_token_id=0), attention="eager")


@model("language", tokens=TOKENS, labels=LABELS)
def bert():
    from transformers import BertConfig, BertForMaskedLM

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = BertForMaskedLM(
                BertConfig(
                    vocab_size=VOCABULARY,
                    hidden_size=24,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    intermediate_size=32,
                    max_position_embeddings=16,
                    hidden_dropout_prob=0,
                    attention_probs_dropout_prob=0,
                )
            )

        def forward(self, tokens, labels):
            return self.model(input_ids=tokens, labels=labels).loss

    return Masked()


@model("language", float32=True, tokens=TOKENS, targets={"shape": [4, 6], "below": VOCABULARY, "from": 3})
def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    class Translation(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = T5ForConditionalGeneration(
                T5Config(
                    vocab_size=VOCABULARY,
                    d_model=16,
                    d_kv=4,
                    d_ff=32,
                    num_layers=2,
                    num_heads=4,
                    dropout_rate=0,
                    decoder_start_token_id=0,
                    pad_token_id=0,
                )
            )

        def forward(self, tokens, targets):
            return self.model(input_ids=tokens, labels=targets, use_cache=False).loss

    return Translation()


@model("vision", sound={"shape": [4, 8, 16]}, targets={"shape": [4, 6], "below": VOCABULARY, "from": 3})
def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    class Speech(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = WhisperForConditionalGeneration(
                WhisperConfig(
                    vocab_size=VOCABULARY,
                    num_mel_bins=8,
                    d_model=16,
                    encoder_layers=2,
                    decoder_layers=2,
                    encoder_attention_heads=4,
                    decoder_attention_heads=4,
                    encoder_ffn_dim=32,
                    decoder_ffn_dim=32,
                    max_source_positions=8,
                    max_target_positions=16,
                    dropout=0,
                    pad_token_id=0,
                    bos_token_id=1,
                    eos_token_id=2,
                    decoder_start_token_id=1,
                )
            )

        def forward(self, sound, targets):
            return self.model(input_features=sound, labels=targets, use_cache=False).loss

    return Speech()


@model("vision", images=images(8), labels=CLASSES)
def vit():
    from transformers import ViTConfig, ViTForImageClassification

    return Images(
        ViTForImageClassification(
            ViTConfig(
                hidden_size=24,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=32,
                image_size=8,
                patch_size=4,
                num_labels=10,
                hidden_dropout_prob=0,
                attention_probs_dropout_prob=0,
            )
        )
    )


@model("vision", images=images(8), tokens={"shape": [4, 8], "below": VOCABULARY})
def clip():
    from transformers import CLIPConfig, CLIPModel

    class Contrastive(nn.Module):
        def __init__(self):
            super().__init__()
            sizes = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
            self.model = CLIPModel(
                CLIPConfig(
                    text_config=dict(sizes, vocab_size=VOCABULARY, max_position_embeddings=8, eos_token_id=2, bos_token_id=1),
                    vision_config=dict(sizes, image_size=8, patch_size=4),
                    projection_dim=12,
                )
            )

        def forward(self, images, tokens):
            # The model's own loss takes len() of a tensor, which fixes the number of samples.
            scores = self.model(input_ids=tokens, pixel_values=images).logits_per_text
            pairs = torch.arange(scores.shape[0])
            return (F.cross_entropy(scores, pairs) + F.cross_entropy(scores.T, pairs)) / 2

    return Contrastive()


@model("vision", images=images(16), labels=CLASSES)
def swin():
    import timm

    return Images(
        timm.models.swin_transformer.SwinTransformer(
            img_size=16, patch_size=2, embed_dim=12, depths=(2, 1), num_heads=(2, 3), window_size=4, num_classes=10, drop_path_rate=0
        )
    )


@model("vision", images=images(32), labels=CLASSES)
def convnext():
    import timm

    return Images(timm.models.convnext.ConvNeXt(depths=(1, 1, 1, 1), dims=(8, 12, 16, 20), patch_size=2, num_classes=10))


@model("vision", half=True, images=images(16), labels=CLASSES)
def resnet():
    from torchvision.models.resnet import BasicBlock, ResNet

    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    # Few channels: the fixture is small.
    planes = {64: 8, 128: 8, 256: 12, 512: 12}

    def narrow(module):
        for name, child in module.named_children():
            if isinstance(child, nn.Conv2d):
                into = planes.get(child.in_channels, child.in_channels)
                setattr(
                    module,
                    name,
                    nn.Conv2d(into, planes[child.out_channels], child.kernel_size, child.stride, child.padding, bias=False),
                )
            elif isinstance(child, nn.BatchNorm2d):
                setattr(module, name, nn.BatchNorm2d(planes[child.num_features]))
            elif isinstance(child, nn.Linear):
                setattr(module, name, nn.Linear(12, 10))
            else:
                narrow(child)

    narrow(network)
    return Images(network)


@model("vision", half=True, images=images(16), masks={"shape": [4, 16, 16], "below": 3})
def unet():
    def block(into, out):
        return nn.Sequential(nn.Conv2d(into, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2, self.middle = block(3, 6), block(6, 8), block(8, 12)
            self.up2, self.up1 = nn.ConvTranspose2d(12, 8, 2, stride=2), nn.ConvTranspose2d(8, 6, 2, stride=2)
            self.merge2, self.merge1 = block(16, 8), block(12, 6)
            self.head = nn.Conv2d(6, 3, 1)

        def forward(self, images, masks):
            first = self.down1(images)
            second = self.down2(F.max_pool2d(first, 2))
            x = self.middle(F.max_pool2d(second, 2))
            x = self.merge2(torch.cat([self.up2(x), second], 1))
            x = self.merge1(torch.cat([self.up1(x), first], 1))
            return F.cross_entropy(self.head(x), masks)

    return UNet()


@model("other", tokens=TOKENS, labels=LABELS)
def lstm():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 12)
            self.lstm = nn.LSTM(12, 10, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(20, VOCABULARY)

        def forward(self, tokens, labels):
            return F.cross_entropy(self.head(self.lstm(self.embed(tokens))[0]).flatten(0, 1), labels.flatten())

    return Recurrent()


@model(
    "other",
    dense={"shape": [8, 5]},
    sparse={"shape": [8, 3, 4], "below": 20},
    clicks={"shape": [8], "below": 2},
)
def dlrm():
    class Recommendation(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleList([nn.EmbeddingBag(20, 8, mode="sum") for _ in range(3)])
            self.bottom = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU())
            self.top = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))

        def forward(self, dense, sparse, clicks):
            x = self.bottom(dense)
            parts = [x] + [table(sparse[:, i]) for i, table in enumerate(self.tables)]
            stacked = torch.stack(parts, 1)
            products = torch.bmm(stacked, stacked.transpose(1, 2))
            i, j = torch.tril_indices(4, 4, offset=-1)
            logits = self.top(torch.cat([x, products[:, i, j]], 1)).squeeze(1)
            return {"loss": F.binary_cross_entropy_with_logits(logits, clicks.to(logits.dtype)), "logits": logits}

    return Recommendation()


@model("language", float32=True, fixed=1, tokens=TOKENS, labels=LABELS)
def fixed_llama():
    from transformers import LlamaConfig

    return language(LlamaConfig(**{**SIZES, "hidden_size": 16}))


@model("vision", fixed=2, images=images(16), labels=CLASSES)
def fixed_vit():
    from transformers import ViTConfig, ViTForImageClassification

    return Images(
        ViTForImageClassification(
            ViTConfig(
                hidden_size=12,
                intermediate_size=16,
                num_hidden_layers=2,
                num_attention_heads=2,
                image_size=16,
                patch_size=8,
                num_labels=10,
                hidden_dropout_prob=0,
                attention_probs_dropout_prob=0,
            )
        )
    )


@model("other", fixed=2, tokens=TOKENS, labels=LABELS)
def fixed_lstm():
    return lstm()


@model("layers", tokens=TOKENS, labels=LABELS)
def attention_layer():
    # Its attention's result has the strides of LibTorch's CPU kernel, which the archive's views need.
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 12)
            self.layer = nn.TransformerEncoderLayer(12, 3, 20, dropout=0.0, batch_first=True)
            self.attention = nn.MultiheadAttention(12, 2)
            self.head = nn.Linear(12, VOCABULARY)

        def forward(self, tokens, labels):
            x = self.layer(self.embed(tokens), src_key_padding_mask=labels == -100).transpose(0, 1)
            x = x + self.attention(x, x, x, need_weights=False)[0]
            return F.cross_entropy(self.head(x.transpose(0, 1)).flatten(0, 1), labels.flatten())

    return Encoder()


@model("other", single=True, images=images(8), labels=CLASSES)
def autocast():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 4, stride=2)
            self.norm = nn.LayerNorm(8)
            self.attention = nn.Linear(8, 24)
            self.head = nn.Linear(8, 10)

        def forward(self, images, labels):
            # torch.export leaves the cache of casts out, which rounds the sum of gradients of a weight.
            with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
                x = self.norm(self.conv(images).flatten(2).transpose(1, 2))
                q, k, v = self.attention(x).chunk(3, -1)
                x = x + torch.softmax(q @ k.transpose(1, 2) / 3, -1) @ v
                with torch.autocast("cpu", enabled=False):
                    x = torch.tanh(x.float()).mean(1)
                logits = torch.cat([self.head(x), self.head(2 * x)], 0)
                return F.cross_entropy(logits[: images.shape[0]] + logits[images.shape[0] :], labels)

    return Mixed()


@model("other", tokens={"shape": [4, 64], "below": 256}, labels={"shape": [4, 64], "below": 256, "from": 5})
def new():
    """The model of `perigee new --from pytorch`."""
    sys.path.insert(0, str(ROOT / "runtime/new_pytorch"))
    from model import Net

    return Net()


def numbers(module, batch):
    """Returns the loss and, by parameter, norm and projection of its gradient."""
    module.zero_grad()
    output = module(**batch)
    loss = output["loss"] if isinstance(output, dict) else output
    loss.backward()
    gradients = {}
    for name, parameter in module.named_parameters():
        if parameter.grad is None:
            continue
        gradient = parameter.grad.double().flatten()
        direction = ((torch.arange(gradient.numel()) * 37) % 101 - 50).double() / 50
        gradients[name] = [gradient.norm().item(), gradient.dot(direction).item()]
    return {"loss": loss.item(), "gradients": gradients}


def strip(program):
    """Removes what only debuggers read, which is most of a small archive."""
    for graph in program.graph_module.modules():
        for node in getattr(getattr(graph, "graph", None), "nodes", ()):
            for key in ("stack_trace", "from_node", "source_fn_stack", "torch_fn"):
                node.meta.pop(key, None)


def write(name):
    make, folder, float32, half, fixed, single, fields = MODELS[name]
    torch.manual_seed(0)
    module = make().train()
    if not single:
        module = module.double()
    for parameter in module.parameters():
        if parameter.dim() < 2:  # zeros and ones of an initialisation hide mistakes
            parameter.data += 0.1 * torch.randn_like(parameter)
    batch = {key: made(field) for key, field in fields.items()}
    if single:
        batch = {key: value.float() if value.is_floating_point() else value for key, value in batch.items()}
    file = f"{folder}/{name}.pt2"
    (FOLDER / folder).mkdir(parents=True, exist_ok=True)
    save = torch.export.save
    torch.export.save = lambda program, path: (strip(program), save(program, path))
    state = {key: value.clone() for key, value in module.state_dict().items()}
    if fixed:
        program = torch.export.export(module, (), {key: value[:fixed] for key, value in batch.items()}, strict=False)
        torch.export.save(program, FOLDER / file)
    else:
        export(module, batch, FOLDER / file)
    torch.export.save = save
    module.load_state_dict(state)
    expected = {"file": file, "float32": float32, "batch": fields, **numbers(module, batch)}
    if single:
        expected["bfloat16"] = True
    if half:
        module.load_state_dict(state)
        samples = next(iter(batch.values())).shape[0] // 2
        expected["half"] = numbers(module, {key: value[:samples] for key, value in batch.items()})
    return expected


def main(names):
    torch.set_num_threads(2)  # as fixtures_test.cc: sums of bfloat16 depend on it
    path = FOLDER / "expected.json"
    all_expected = json.loads(path.read_text())["models"] if path.exists() else {}
    for name in names or MODELS:
        try:
            all_expected[name] = write(name)
            print(name, (FOLDER / all_expected[name]["file"]).stat().st_size, flush=True)
        except Exception as error:  # the others are still written
            print(f"{name}: {type(error).__name__}: {str(error)[:1500]}", file=sys.stderr, flush=True)
    text = {"torch": torch.__version__.split("+")[0], "models": dict(sorted(all_expected.items()))}
    path.write_text(json.dumps(text, separators=(",", ":")).replace('},"', '},\n"') + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
