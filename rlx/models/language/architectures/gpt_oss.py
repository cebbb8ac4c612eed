"""gpt-oss (OpenAI, 2025): experts with biases and a clamped SwiGLU, attention with sinks, windows in every other layer;
files hold the experts in MXFP4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    Value,
    attention,
    llama_like,
    same_name,
    turned,
    under_all_names,
    windows_of,
)
from rlx.models.language.config import MOST_EXPERTS, MOST_INNER, MOST_LAYERS, Experts, Fields, LanguageConfig
from rlx.packed import PackedArray

# Settings that folders may omit, as in the published models.
_ROPE = {
    "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
    "original_max_position_embeddings": 4096,
}  # fmt: skip


def gpt_oss(f: Fields) -> LanguageConfig:
    if not f.has("rope_parameters") and not f.content.get("rope_scaling"):
        f = f.but(rope_scaling=_ROPE)
    f = Fields({"head_dim": 64, **f.content}, f.where)
    if not f.has("rope_theta"):
        f = f.but(rope_theta=150000.0)
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    windows = windows_of(f, layers, lambda i: i % 2 == 0)
    f.must_be("swiglu_alpha", 1.702)
    f = under_all_names(f, {"num_experts": "num_local_experts"})
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
    if not found or name in tensors:  # GGUF: gate_proj and up_proj are separate tensors
        return same_name(name, config, tensors)
    part, _, what = kind.partition(".")
    # The rows of gate_proj and up_proj alternate in one tensor.
    file, each = (part, slice(None)) if part == "down_proj" else ("gate_up_proj", slice(part == "up_proj", None, 2))
    whole = f"{before}.mlp.experts.{file}"
    if what == "bias":
        return Recipe((f"{whole}_bias",), lambda values: values[0][:, each])  # type: ignore[index]

    def taken(values: Sequence[Value]) -> Value:
        (value,) = values
        if isinstance(value, PackedArray):  # packed tensors have the outputs as rows; others are transposed below
            data = value.data[:, each]
            return PackedArray(value.dtype, (*data.shape[:2], value.shape[2]), data)
        return turned(value[:, :, each])

    return Recipe((whole,), taken)


ARCHITECTURES = {"gpt_oss": Architecture(gpt_oss, names)}
