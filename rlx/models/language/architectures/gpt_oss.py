"""gpt-oss (OpenAI, 2025): experts with biases and a clamped SwiGLU, attention with sinks, windows in every other layer;
files hold the experts in MXFP4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlx.dtypes import as_dtype
from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    Value,
    attention,
    llama_like,
    same_name,
    windows_of,
)
from rlx.models.language.config import MOST_EXPERTS, MOST_INNER, MOST_LAYERS, Experts, Fields, LanguageConfig
from rlx.packed import PackedArray


def gpt_oss(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    windows = windows_of(f, layers, lambda i: i % 2 == 0)
    f.must_be("swiglu_alpha", 1.702)
    count = f.count("num_local_experts", MOST_EXPERTS)
    experts = Experts(
        count,
        f.count("num_experts_per_tok", count),
        f.count("intermediate_size", MOST_INNER),
        order="chosen",
        limit=f.number("swiglu_limit", 1e-3, 1e6, 7.0),
        bias=True,
    )
    bias = f.flag("attention_bias", True)
    mixed = attention(f, layers, windows=windows, qkv_bias=bias, out_bias=bias, sinks=True)
    return llama_like(f, "gpt_oss", attention=mixed, experts=experts)


def names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    name = name.replace(".mlp.gate.", ".mlp.router.")
    before, found, kind = name.partition(".mlp.experts.")
    if not found:
        return same_name(name, config, tensors)
    part, _, what = kind.partition(".")
    # Gates and the others take turns in one tensor.
    file, each = (part, slice(None)) if part == "down_proj" else ("gate_up_proj", slice(part == "up_proj", None, 2))
    whole = f"{before}.mlp.experts.{file}"
    if what == "bias":
        return Recipe((f"{whole}_bias",), lambda values: np.asarray(values[0])[:, each])
    if f"{whole}_blocks" in tensors:
        return Recipe((f"{whole}_blocks", f"{whole}_scales"), lambda v: _packed(v, each), dtype=as_dtype("mxfp4"))
    return Recipe((whole,), lambda values: np.ascontiguousarray(np.asarray(values[0])[:, :, each].swapaxes(1, 2)))


def _packed(values: Sequence[Value], each: slice) -> Value:
    """Blocks of 32 elements, two neighbours a byte, as GGUF has them: element i beside element i + 16."""
    blocks, scales = (np.asarray(v)[:, each] for v in values)
    quants = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    made = np.concatenate([scales[..., None], quants[..., :16] | quants[..., 16:] << 4], -1)
    shape = (*blocks.shape[:2], 32 * blocks.shape[2])
    return PackedArray.from_gguf(np.ascontiguousarray(made), "mxfp4", shape)


ARCHITECTURES = {"gpt_oss": Architecture(gpt_oss, names)}
