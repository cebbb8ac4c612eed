"""Networks of floats for benchmarks, as torch exports them: torchvision's and transformers' shapes with random weights.

They are written once to `.cache/networks`; to make them takes torch, and torchvision or transformers. Norms of batches
have the statistics of random images, so that no activation dies out.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Feeds = dict[str, np.ndarray[Any, Any]]
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "networks"
_TRANSFORMERS = {
    "bert-base": ("BertModel", "BertConfig", {}),
    "vit-b16": ("ViTModel", "ViTConfig", {}),
    # Whisper-base.
    "whisper-encoder": ("WhisperModel", "WhisperConfig", {"d_model": 512, "encoder_layers": 6, "decoder_layers": 1,
                        "encoder_attention_heads": 8, "decoder_attention_heads": 8, "encoder_ffn_dim": 2048}),
}  # fmt: skip
_IMAGES = {
    "mobilenet-v3-s": "mobilenet_v3_small",
    "mobilenet-v3": "mobilenet_v3_large",
    "efficientnet-b0": "efficientnet_b0",
    "resnet18": "resnet18",
    "swin-t": "swin_t",
}


def feeds_of(name: str) -> Feeds:
    """What a network is run on."""
    rng = np.random.default_rng(1)
    if name == "bert-base":
        return {"ids": rng.integers(0, 30000, (1, 128)), "mask": np.ones((1, 128), np.int64)}
    if name == "raft-small":
        return {k: rng.uniform(-1, 1, (1, 3, 128, 160)).astype(np.float32) for k in ("first", "second")}
    shape = (1, 80, 3000) if name == "whisper-encoder" else (1, 3, 224, 224)
    return {"x": rng.standard_normal(shape).astype(np.float32)}


def _module(name: str) -> Any:
    """The network as torch's module, which gives one tensor."""
    import torch

    torch.manual_seed(0)
    if name in _TRANSFORMERS:
        t = importlib.import_module("transformers")
        model, config, options = _TRANSFORMERS[name]
        inner = getattr(t, model)(getattr(t, config)(**options, attn_implementation="eager"))
        inner = inner.encoder if name == "whisper-encoder" else inner

        class First(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, *given: Any) -> Any:
                keys = ("input_ids", "attention_mask") if name == "bert-base" else ("pixel_values",)
                if name == "whisper-encoder":
                    keys = ("input_features",)
                return self.inner(**dict(zip(keys, given, strict=True)), return_dict=False)[0]

        return First()
    if name == "raft-small":
        flow = importlib.import_module("torchvision.models.optical_flow").raft_small(weights=None)

        class Flow(torch.nn.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                self.inner = flow

            def forward(self, first: Any, second: Any) -> Any:
                return self.inner(first, second, num_flow_updates=12)[-1]

        return Flow()
    net = getattr(importlib.import_module("torchvision.models"), _IMAGES[name])(weights=None)
    for part in net.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.momentum = 1.0
    with torch.no_grad():
        net.train()(torch.randn(4, 3, 224, 224))
    return net


def compiled(name: str, threads: int) -> Callable[[], Any]:
    """One inference by torch.compile, with so many threads in this process."""
    import torch

    torch.set_num_threads(threads)
    run = torch.compile(_module(name).eval())
    given = [torch.from_numpy(x) for x in feeds_of(name).values()]

    def infer() -> Any:
        with torch.inference_mode():
            return run(*given).numpy()

    return infer


def exported(name: str) -> tuple[Any, Feeds]:
    """The network as an ONNX model, from the folder or made now, and what it is run on."""
    import onnx

    path, feeds = FOLDER / f"{name}.onnx", feeds_of(name)
    if not path.exists():
        import torch

        FOLDER.mkdir(parents=True, exist_ok=True)
        given = tuple(torch.from_numpy(x) for x in feeds.values())
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.onnx.export(
                _module(name).eval(), given, str(path), dynamo=False, opset_version=17, input_names=list(feeds),
                output_names=["y"], verbose=False,
            )  # fmt: skip
    return onnx.load(str(path)), feeds


NAMES = (*_TRANSFORMERS, *_IMAGES, "raft-small")
MODELS: dict[str, Callable[[], tuple[Any, Feeds]]] = {n: lambda n=n: exported(n) for n in NAMES}  # type: ignore[misc]
