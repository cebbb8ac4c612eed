"""Command R (Cohere, 2024): layer norms without biases, attention and MLP in parallel, RoPE on adjacent pairs; the
second version (2025) has RoPE only in layers with windows."""

from __future__ import annotations

from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    attention,
    by_class,
    experts_in,
    llama_like,
    renamed,
    windows_of,
)
from rlx.models.language.architectures.deepseek import dense_layers
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    Attention,
    Experts,
    Fields,
    LanguageConfig,
)


def _read(f: Fields, architecture: str, mixed: Attention) -> LanguageConfig:
    return llama_like(
        f, architecture, norm="layer", norm_bias=False, eps=f.number("layer_norm_eps", 0, 1), parallel=1,
        logit_scale=f.number("logit_scale", -1e6, 1e6), attention=mixed,
    )  # fmt: skip


def _attention(f: Fields, layers: int, **changed: Any) -> Attention:
    bias, f = f.flag("attention_bias", False), f.but(head_dim=None, rope_interleaved=True)
    return attention(f, layers, qkv_bias=bias, out_bias=bias, **changed)


def cohere(f: Fields) -> LanguageConfig:
    layers, norm = f.count("num_hidden_layers", MOST_LAYERS), "heads" if f.flag("use_qk_norm", False) else None
    return _read(f, "cohere", _attention(f, layers, qk_norm=norm))


def cohere2(f: Fields) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    every = f.count("sliding_window_pattern", MOST_LAYERS, 4)
    windows = windows_of(f, layers, lambda i: (i + 1) % every != 0)
    mixed = _attention(f, layers, windows=windows)
    ropes = tuple(None if w is None else rope for w, rope in zip(windows, mixed.ropes, strict=True))
    return _read(f, "cohere2", _attention(f, layers, windows=windows, ropes=ropes))


def cohere2_moe(f: Fields) -> LanguageConfig:
    """The second version with experts (2026), after first layers with MLPs, whose windows follow a pattern of their
    own."""
    layers, first = f.count("num_hidden_layers", MOST_LAYERS), f.count("first_k_dense_replace", MOST_LAYERS, 0, least=0)
    every = f.count("sliding_window_pattern", MOST_LAYERS)
    begin = f.count("prefix_dense_sliding_window_pattern", MOST_LAYERS)
    near = windows_of(f, layers, lambda i: (i + 1) % begin != 0 if i < first else (i + 1 - first) % every != 0)
    dense, f = dense_layers(f, lambda i: i < first), f.but(rope_interleaved=True)
    bias, ropes = f.flag("attention_bias", False), attention(f, layers).ropes
    ropes = tuple(
        None if w is None and not (i in dense and begin == 1) else rope
        for i, (w, rope) in enumerate(zip(near, ropes, strict=True))
    )
    mixed = attention(f, layers, windows=near, ropes=ropes, qkv_bias=bias, out_bias=bias)
    count, inner = f.count("num_experts", MOST_EXPERTS), f.count("intermediate_size", MOST_INNER)
    order = f.choice("expert_selection_fn", {"softmax": "chosen", "sigmoid": "sigmoid"})
    half = f.choice("shared_expert_combination_strategy", {"average": "half", "sum": ""}) == "half"
    shared = f.count("num_shared_experts", MOST_EXPERTS, least=0)
    part = 0.5 if half and shared else 1.0
    experts = Experts(
        count, f.count("num_experts_per_tok", count), inner, order="chosen" if order == "chosen" else "sigmoid",
        renormalize=f.flag("norm_topk_prob", True), scaling=part, shared=inner * shared, shared_gated=False,
    )  # fmt: skip
    if f.has("rms_norm_eps"):
        kind: dict[str, Any] = {"eps": f.number("rms_norm_eps", 0, 1)}
    else:
        kind = {"norm": "layer", "norm_bias": False, "eps": f.number("layer_norm_eps", 0, 1)}
    return llama_like(
        f, "cohere2_moe", parallel=1, logit_scale=f.number("logit_scale", -1e6, 1e6), attention=mixed, experts=experts,
        inner=f.count("prefix_dense_intermediate_size", MOST_INNER) if dense else inner, dense=dense,
        scales=(("mlp.shared_expert.down_proj", part),) if part != 1.0 else (), **kind,
    )  # fmt: skip


ARCHITECTURES = {
    "cohere": Architecture(by_class(cohere)),
    "cohere2": Architecture(by_class(cohere2)),
    "cohere2_moe": Architecture(
        by_class(cohere2_moe), renamed({"mlp.shared_expert": "mlp.shared_experts"}, experts_in())
    ),
}
