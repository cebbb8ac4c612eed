"""Networks of torch, torchvision and transformers, small and of random weights, through both of torch's exporters."""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn
from torch import nn

Feeds = dict[str, np.ndarray]
Network = tuple[nn.Module, tuple[torch.Tensor, ...]]


def _image(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (1, 3, 32, 32)))


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 50, shape or (2, 9))


class Calls(nn.Module):
    """A function of tensors, with the modules it uses."""

    def __init__(self, call: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.call = call
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *given: torch.Tensor) -> Any:
        return self.call(self, *given)


class Last(nn.Module):
    """What a model of transformers gives first."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: torch.Tensor) -> Any:
        return self.inner(*given, return_dict=False)[0]


def _residual(width: int) -> nn.Module:
    body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    return Calls(lambda m, x: fn.relu(m.body(x) + x), body=body)


def _attention(m: Any, x: torch.Tensor) -> torch.Tensor:
    q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in m.qkv(x).chunk(3, -1))
    return m.out(fn.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


def _split_heads(m: Any, x: torch.Tensor) -> torch.Tensor:
    q, k = m.q(x).view(2, 9, 4, 8).permute(0, 2, 1, 3), m.k(x).view(2, 9, 4, 8).permute(0, 2, 3, 1)
    return (torch.matmul(q, k) / 8**0.5).softmax(-1).sum(1)


def _unet(m: Any, x: torch.Tensor) -> torch.Tensor:
    a = fn.silu(m.first(x))
    b = fn.silu(m.down(a))
    up = fn.interpolate(m.mid(b), scale_factor=2.0, mode="nearest")
    return m.last(torch.cat([a, up], 1))


def _numbers(m: Any, x: torch.Tensor) -> torch.Tensor:
    made = x.erf() + x.floor() - x.sign() * x.round() + x.fmod(0.7) + x.exp().log1p() + x.atan() ** 2
    return made.remainder(1.5)


def plain() -> dict[str, Callable[[], Network]]:
    """Networks written here."""
    conv, lin, seq = nn.Conv2d, nn.Linear, nn.Sequential
    blocks = {"body": seq(conv(3, 16, 3, 2, 1), _residual(16), _residual(16)), "head": lin(16, 10)}
    return {
        "mlp": lambda: (
            seq(lin(20, 32), nn.GELU(), nn.LayerNorm(32), lin(32, 10), nn.LogSoftmax(-1)),
            (_image(4, 20),),
        ),
        "convnet": lambda: (
            seq(conv(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), lin(1800, 5)),
            (_image(),),
        ),
        "resnet": lambda: (Calls(lambda m, x: m.head(m.body(x).mean((2, 3))), **blocks), (_image(),)),
        "depthwise": lambda: (
            seq(
                conv(3, 12, 1), conv(12, 12, 3, padding=1, groups=12), nn.Hardswish(), nn.AdaptiveAvgPool2d(1)
            ),
            (_image(),),
        ),
        "dilated": lambda: (
            seq(conv(3, 6, 3, dilation=2), nn.ELU(), conv(6, 6, 3, stride=2), nn.Mish()),
            (_image(),),
        ),
        "transposed": lambda: (
            seq(nn.ConvTranspose2d(3, 6, 3, 2, 1, 1), nn.PReLU(6), nn.ConvTranspose2d(6, 3, 4, 2, 1)),
            (_image(1, 3, 8, 8),),
        ),
        "conv1d": lambda: (
            seq(nn.Conv1d(4, 8, 5), nn.GLU(1), nn.AvgPool1d(3), nn.Tanh()),
            (_image(2, 4, 40),),
        ),
        "conv3d": lambda: (
            seq(nn.Conv3d(2, 4, 3), nn.InstanceNorm3d(4), nn.MaxPool3d(2)),
            (_image(1, 2, 8, 8, 8),),
        ),
        "norms": lambda: (
            seq(nn.GroupNorm(2, 4), nn.InstanceNorm2d(4, affine=True), nn.LocalResponseNorm(3)),
            (_image(2, 4, 6, 6),),
        ),
        "unet": lambda: (
            Calls(
                _unet,
                first=conv(3, 8, 3, padding=1),
                down=conv(8, 8, 3, 2, 1),
                mid=conv(8, 8, 1),
                last=conv(16, 2, 1),
            ),
            (_image(),),
        ),
        "pixels": lambda: (
            seq(conv(3, 12, 3, padding=1), nn.PixelShuffle(2), nn.PixelUnshuffle(4)),
            (_image(),),
        ),
        "lstm": lambda: (
            Calls(lambda m, x: m.r(x)[0], r=nn.LSTM(6, 8, 2, bidirectional=True)),
            (_image(7, 2, 6),),
        ),
        "gru": lambda: (Calls(lambda m, x: m.r(x)[1], r=nn.GRU(6, 8, batch_first=True)), (_image(2, 7, 6),)),
        "rnn": lambda: (Calls(lambda m, x: m.r(x)[0], r=nn.RNN(6, 8)), (_image(7, 2, 6),)),
        "embedding": lambda: (seq(nn.Embedding(50, 16), lin(16, 8), nn.Softmax(-1)), (_ids(),)),
        "encoder": lambda: (
            nn.TransformerEncoder(
                nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2, enable_nested_tensor=False
            ),
            (_image(2, 5, 16),),
        ),
        "causal": lambda: (Calls(_attention, qkv=lin(32, 96), out=lin(32, 32)), (_image(2, 9, 32),)),
        "scores": lambda: (Calls(_split_heads, q=lin(32, 32), k=lin(32, 32)), (_image(2, 9, 32),)),
        "resize": lambda: (
            Calls(lambda m, x: fn.interpolate(x, (20, 27), mode="bilinear", align_corners=False)),
            (_image(1, 2, 9, 11),),
        ),
        "bicubic": lambda: (
            Calls(lambda m, x: fn.interpolate(x, scale_factor=1.7, mode="bicubic")),
            (_image(1, 2, 9, 11),),
        ),
        "pads": lambda: (
            Calls(lambda m, x: fn.pad(fn.pad(x, (1, 2, 2, 1), "reflect"), (1, 1, 1, 1), "replicate")),
            (_image(1, 2, 6, 7),),
        ),
        "grid": lambda: (
            Calls(lambda m, x, g: fn.grid_sample(x, g.tanh(), align_corners=False)),
            (_image(1, 2, 6, 7), _image(1, 5, 4, 2)),
        ),
        "indices": lambda: (
            Calls(lambda m, x, i: x[i, :, 1:5:2].gather(1, x.argsort(1)[i][..., :2])),
            (_image(5, 4, 6), torch.tensor([3, 0, 4])),
        ),
        "scatter": lambda: (
            Calls(lambda m, x, i: x.scatter_add(1, i, x * 2).index_fill(0, i[0, :1], 3.0)),
            (_image(4, 5), torch.randint(0, 4, (4, 5))),
        ),
        "topk": lambda: (
            Calls(lambda m, x: (*x.topk(3), x.sort(0, True)[0], x.argmax(1), x.cumsum(1))),
            (_image(4, 9),),
        ),
        "reductions": lambda: (
            Calls(
                lambda m, x: (
                    x.amax((1, 2)),
                    x.std(1),
                    x.norm(dim=2),
                    x.prod(0),
                    x.logsumexp(1),
                    x.var(2, False),
                )
            ),
            (_image(3, 4, 5),),
        ),
        "einsum": lambda: (
            Calls(lambda m, a, b: torch.einsum("bij,bkj->bik", a, b)),
            (_image(2, 3, 4), _image(2, 5, 4)),
        ),
        "wheres": lambda: (
            Calls(lambda m, x: torch.where(x > 0, x.clamp(max=1), x.abs().sqrt()).tril().roll(1, 0)),
            (_image(5, 5),),
        ),
        "arithmetic": lambda: (Calls(_numbers), (_image(4, 9),)),
        "integers": lambda: (
            Calls(lambda m, i: ((i * 7 // 3) % 5 + (i << 2) + (i & 3), i.float() / 3, i.bool().any(1))),
            (_ids(),),
        ),
        "masks": lambda: (
            Calls(lambda m, x, i: x.masked_fill((i > 20)[:, None], -1e9).softmax(-1)),
            (_image(2, 4, 9), _ids()),
        ),
        "shapes": lambda: (
            Calls(lambda m, x: x.view(x.shape[0], -1).unfold(1, 4, 2).flip(-1).repeat(1, 2, 1).squeeze(0)),
            (_image(2, 3, 8),),
        ),
        "fold": lambda: (
            Calls(lambda m, x: fn.fold(fn.unfold(x, 3, padding=1), (6, 7), 3, padding=1)),
            (_image(1, 2, 6, 7),),
        ),
        "rmsnorm": lambda: (seq(nn.RMSNorm(16), lin(16, 16), nn.SiLU(), nn.RMSNorm(16)), (_image(3, 5, 16),)),
        "activations": lambda: (
            seq(
                nn.SELU(),
                nn.CELU(),
                nn.Softplus(),
                nn.Hardsigmoid(),
                nn.LeakyReLU(),
                nn.Softsign(),
                nn.Hardtanh(),
                nn.LogSigmoid(),
                nn.Tanhshrink(),
                nn.ReLU6(),
            ),
            (_image(4, 9),),
        ),
        "mixture": lambda: (
            Calls(
                lambda m, x: sum(m.gate(x).softmax(-1)[..., k : k + 1] * e(x) for k, e in enumerate(m.each)),
                gate=lin(8, 3),
                each=nn.ModuleList(lin(8, 8) for _ in range(3)),
            ),
            (_image(4, 8),),
        ),
        "branch": lambda: (torch.jit.script(_Branch()), (_image(3, 4),)),
        "loop": lambda: (torch.jit.script(_Loop()), (_image(3, 4), torch.tensor(5))),
        "distance": lambda: (
            Calls(lambda m, a, b: (torch.cdist(a, b), fn.cosine_similarity(a, b[:3], -1))),
            (_image(3, 4), _image(5, 4)),
        ),
    }


class _Branch(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.sum() > 0):  # torch.jit writes an If
            y = x * 2
        else:
            y = x - 1
        return y


class _Loop(nn.Module):
    def forward(self, x: torch.Tensor, n: int) -> torch.Tensor:
        for k in range(n):
            x = x * 0.5 + k
        return x


def torchvision() -> dict[str, Callable[[], Network]]:
    """Networks of torchvision at 64 pixels."""
    names = (
        "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "shufflenet_v2_x0_5", "mnasnet0_5", "efficientnet_b0",
        "regnet_y_400mf", "resnet18",
    )  # fmt: skip
    models = importlib.import_module("torchvision.models")
    return {
        name: lambda name=name: (
            getattr(models, name)(weights=None),
            (_image(1, 3, 64, 64),),
        )
        for name in names
    }


def transformers() -> dict[str, Callable[[], Network]]:
    """Language and vision models of transformers, of a few thousand weights each."""
    t = importlib.import_module("transformers")
    text = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
    }
    image = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 32,
        "patch_size": 8,
    }  # fmt: skip
    stages = {
        "depths": [1, 1],
        "embed_dim": 16,
        "num_heads": [2, 4],
        "image_size": 32,
        "patch_size": 4,
        "window_size": 4,
    }
    made: dict[str, tuple[str, str, dict[str, Any], Callable[[], tuple[torch.Tensor, ...]]]] = {}
    for name in ("Bert", "Roberta", "Electra", "Albert", "MPNet", "XLMRoberta", "MegatronBert"):
        made[name.lower()] = (f"{name}Model", f"{name}Config", text, lambda: (_ids(),))
    kv = {**text, "num_key_value_heads": 2, "use_cache": False, "head_dim": 8}
    for name in ("Llama", "Mistral", "Qwen2", "Gemma"):
        made[name.lower()] = (
            f"{name}ForCausalLM",
            f"{name}Config",
            kv,
            lambda: (_ids(),),
        )
    gpt = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "use_cache": False}
    made["gpt2"] = ("GPT2LMHeadModel", "GPT2Config", gpt, lambda: (_ids(),))
    made["gptneox"] = ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**text, "use_cache": False}, lambda: (_ids(),))
    made["opt"] = (
        "OPTForCausalLM",
        "OPTConfig",
        {
            "vocab_size": 50,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "word_embed_proj_dim": 32,
            "use_cache": False,
        },
        lambda: (_ids(),),
    )
    made["distilbert"] = (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": 50, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        lambda: (_ids(),),
    )
    made["t5"] = (
        "T5EncoderModel",
        "T5Config",
        {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        lambda: (_ids(),),
    )
    for name in ("ViT", "DeiT", "Dinov2"):
        made[name.lower()] = (f"{name}Model", f"{name}Config", image, lambda: (_image(),))
    made["clip"] = ("CLIPVisionModel", "CLIPVisionConfig", image, lambda: (_image(),))
    made["swin"] = ("SwinModel", "SwinConfig", stages, lambda: (_image(),))
    made["convnext"] = (
        "ConvNextModel",
        "ConvNextConfig",
        {"depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2},
        lambda: (_image(),),
    )
    made["resnet-hf"] = (
        "ResNetModel",
        "ResNetConfig",
        {"depths": [1, 1], "hidden_sizes": [8, 16], "embedding_size": 8},
        lambda: (_image(),),
    )
    made["segformer"] = (
        "SegformerModel",
        "SegformerConfig",
        {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]},
        lambda: (_image(1, 3, 64, 64),),
    )
    made["whisper"] = (
        "WhisperModel",
        "WhisperConfig",
        {
            "d_model": 16,
            "encoder_layers": 1,
            "encoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "max_source_positions": 20,
            "num_mel_bins": 8,
            "decoder_layers": 1,
            "decoder_attention_heads": 2,
            "decoder_ffn_dim": 24,
            "vocab_size": 50,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "decoder_start_token_id": 1,
        },
        lambda: (_image(1, 8, 40),),
    )

    def build(model: str, config: str, options: dict[str, Any], given: Any, name: str) -> Network:
        inner = getattr(t, model)(getattr(t, config)(**options, attn_implementation="eager"))
        return Last(inner.encoder if name == "whisper" else inner), given()

    return {name: lambda spec=spec, name=name: build(*spec, name) for name, spec in made.items()}


# Networks that are exported with open lengths too, and how many axes of their inputs these are; they run at other ones.
OPEN = {
    **dict.fromkeys(("mlp", "resnet", "depthwise", "lstm", "gru", "embedding", "norms", "reductions"), 1),
    **dict.fromkeys(
        ("causal", "encoder", "rmsnorm", "masks", "bert", "distilbert", "roberta", "albert", "t5", "opt"), 2
    ),
    **dict.fromkeys(("gpt2", "llama", "qwen2", "gptneox", "electra", "mpnet", "vit", "swin", "segformer"), 2),
    **dict.fromkeys(
        ("unet", "resize", "mobilenet_v2", "shufflenet_v2_x0_5", "efficientnet_b0", "convnext"), 1
    ),
}


def exported(network: Network, path: Path, dynamo: bool, axes: int = 0) -> Feeds:
    """Writes a network as an ONNX file, with so many first axes of open length. Returns: what its inputs are fed with,
    which is longer along these by one."""
    model, given = network
    names = [f"in{k}" for k in range(len(given))]
    how: dict[str, Any] = {}
    axes = min(axes, *(1 if g.ndim == 4 else g.ndim for g in given))
    if axes and dynamo:
        kinds = tuple(dict.fromkeys(range(axes), torch.export.Dim.DYNAMIC) for _ in names)
        how = {"dynamic_shapes": (kinds,) if isinstance(model, Calls | Last) else kinds}
        given = tuple(
            torch.cat([g, g]) if g.shape[0] == 1 else g for g in given
        )  # one of 1 is taken for fixed
    elif axes:
        how = {"dynamic_axes": {n: {a: f"{n}_{a}" for a in range(axes)} for n in names}}
    model = model.eval()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, given, str(path), input_names=names, dynamo=dynamo, external_data=False,
            **({"verbose": False} if dynamo else {}), **how,
        )  # fmt: skip
    return {n: _longer(g.numpy(), axes) for n, g in zip(names, given, strict=True)}


def _longer(array: np.ndarray, axes: int) -> np.ndarray:
    for axis in range(axes):
        array = np.take(array, range(array.shape[axis] + 1), axis, mode="wrap")
    return array


def families() -> Iterator[tuple[str, Callable[[], Network]]]:
    """All networks by name, those whose package is installed."""
    yield from plain().items()
    for family in (torchvision, transformers):
        try:
            yield from family().items()
        except ImportError as error:
            print(f"left out: {family.__name__} ({error})", flush=True)
