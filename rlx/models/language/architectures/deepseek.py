"""DeepSeek-V2 (2024) and V3 (2024), with latent attention and many small experts, some shared by all tokens; dots.llm1
(2025), with such experts and a Llama's attention."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    Architecture,
    Recipe,
    attention,
    by_class,
    derived,
    experts_in,
    llama_like,
    renamed,
    windows_of,
)
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Attention,
    Experts,
    Fields,
    LanguageConfig,
    Latent,
    Mixer,
)
from rlx.records import replace

MTP = re.compile(r"rotary_emb\.inv_freq$|^mtp\.")  # multi-token prediction
_DENSE_NORMS = re.compile(rf"{MTP.pattern}|^layers\.\d+\.post_mlp_layernorm\.weight$")  # layers with an MLP have it
SHARED = {"mlp.shared_expert": "mlp.shared_experts", "mlp.gate.correction": "mlp.gate.e_score_correction_bias"}


def routed(f: Fields, layers: int, **changed: Any) -> tuple[Experts, frozenset[int]]:
    """The experts of V3 and similar models, chosen in groups by sigmoids, and the layers that have an MLP instead."""
    count, inner = f.count("n_routed_experts", MOST_EXPERTS), f.count("moe_intermediate_size", MOST_INNER)
    groups = f.count("n_group", count, 1)
    if count % groups or (groups > 1 and count // groups < 2):
        f.wrong("n_group", f"a number that divides the {count} experts into groups of two or more")
    settings: dict[str, Any] = {
        "order": "sigmoid", "corrected": True, "renormalize": f.flag("norm_topk_prob", False), "groups": groups,
        "groups_used": f.count("topk_group", groups, groups), "group_top": 2, "floor": 1e-20, "added": True,
        "scaling": f.number("routed_scaling_factor", 0, 1e6, 1.0),
    }  # fmt: skip
    shared = inner * f.count("n_shared_experts", MOST_EXPERTS, 0, least=0)
    settings |= {"shared": shared, "shared_gated": False, **changed}
    experts = Experts(count, f.count("num_experts_per_tok", count), inner, **settings)
    if experts.used > count // groups * experts.groups_used:
        f.wrong("num_experts_per_tok", f"at most the experts of {experts.groups_used} groups")
    return experts, frozenset(range(f.count("first_k_dense_replace", MOST_LAYERS, 0, least=0)))


def dense_layers(f: Fields, otherwise: Callable[[int], bool]) -> frozenset[int]:
    """The layers with an MLP in place of experts: by `mlp_layer_types`, or without it by the layer's number
    (`otherwise`)."""
    layers, kinds = f.count("num_hidden_layers", MOST_LAYERS), f.content.get("mlp_layer_types")
    if kinds is None:
        return frozenset(i for i in range(layers) if otherwise(i))
    if not isinstance(kinds, list) or len(kinds) != layers or not {"dense", "sparse"}.issuperset(map(str, kinds)):
        f.wrong("mlp_layer_types", f"a list of {layers} words, dense or sparse")
    return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")


def latent_attention(f: Fields, layers: int, interleaved: bool) -> Attention:
    """Multi-head latent attention; with YaRN the scale includes its second factor."""
    heads, turned = f.count("num_attention_heads", MOST_HEADS), f.count("qk_rope_head_dim", MOST_WIDTH)
    plain = f.count("qk_nope_head_dim", MOST_WIDTH)
    latent = Latent(
        f.count("kv_lora_rank", MOST_WIDTH), turned, plain, f.count("v_head_dim", MOST_WIDTH),
        f.count("q_lora_rank", MOST_WIDTH) if f.has("q_lora_rank") else 0,
    )  # fmt: skip
    scale, scaling = (plain + turned) ** -0.5, f.content.get("rope_parameters") or f.content.get("rope_scaling") or {}
    if isinstance(scaling, dict) and scaling.get("rope_type", scaling.get("type", "default")) != "default":
        own = Fields(scaling, f.where)
        factor, m = own.number("factor", 1e-6, 1e6, 1.0), own.number("mscale_all_dim", 0, 1e6, 0.0)
        if m and factor > 1:
            scale *= (0.1 * m * math.log(factor) + 1) ** 2
    bias = f.flag("attention_bias", False)
    rope = f.but(rope_interleaved=interleaved).rope(turned)
    return Attention(
        heads, 1, latent.rank + turned, (rope,) * layers, (None,) * layers, scale, qkv_bias=bias, out_bias=bias,
        latent=latent,
    )  # fmt: skip


def latent_and_experts(f: Fields, architecture: str, attention: Attention, **changed: Any) -> LanguageConfig:
    mixer: tuple[Mixer, ...] = ("latent",)
    mixers = mixer * f.count("num_hidden_layers", MOST_LAYERS)
    return llama_like(f, architecture, attention=attention, mixers=mixers, heads_beyond=True, **changed)


def _read(f: Fields, architecture: str, experts: Experts, dense: frozenset[int], interleaved: bool) -> LanguageConfig:
    attention = latent_attention(f, f.count("num_hidden_layers", MOST_LAYERS), interleaved)
    return latent_and_experts(f, architecture, attention, experts=experts, dense=dense)


def deepseek_v2(f: Fields) -> LanguageConfig:
    method = f.choice("topk_method", {"greedy": "greedy", "group_limited_greedy": "grouped"})
    own = f if method == "grouped" else f.but(n_group=None, topk_group=None)
    f.must_be("mlp_bias", False)
    experts, dense = routed(own, 0, order="softmax", corrected=False, renormalize=False, group_top=1)
    return _read(f, "deepseek_v2", replace(experts, floor=0.0, added=False), dense, True)


def deepseek_v3(f: Fields) -> LanguageConfig:
    experts, dense = routed(f, 0)
    return _read(f, "deepseek_v3", experts, dense, f.flag("rope_interleave", True))


def dots1(f: Fields) -> LanguageConfig:
    layers, bias = f.count("num_hidden_layers", MOST_LAYERS), f.flag("attention_bias", False)
    first = f.count("max_window_layers", MOST_LAYERS, least=0)
    near = windows_of(f, layers, lambda i: f.has("sliding_window") and i >= first)
    experts, dense = routed(f, layers)
    mixed = attention(f, layers, qk_norm="head", qkv_bias=bias, out_bias=bias, windows=near)
    return llama_like(f, "dots1", attention=mixed, experts=experts, dense=dense)


def axk1(f: Fields) -> LanguageConfig:
    """A.X K1 (SK Telecom, 2026): a norm after the experts."""
    experts, dense = routed(f, 0, normed=True)
    own = dense_layers(f, lambda i: i in dense or i % f.count("moe_layer_freq", MOST_LAYERS, 1) != 0)
    return _read(f, "axk1", experts, own, f.flag("rope_interleave", True))


def absorbed(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Each head's key rows and value rows, which alternate in one matrix."""
    before, mark, part = name.partition(".kv_b_")
    a = config.attention
    if not mark or a is None or a.latent is None:
        return experts_in()(name, config, tensors)
    m = a.latent
    cut = slice(None, m.plain) if part == "keys.weight" else slice(m.plain, None)
    return derived(
        f"{before}.kv_b_proj.weight", lambda w: w.reshape(a.heads, m.plain + m.value, m.rank)[:, cut]
    )


ARCHITECTURES = {
    "deepseek_v2": Architecture(by_class(deepseek_v2), renamed(SHARED, absorbed)),
    "deepseek_v3": Architecture(by_class(deepseek_v3), renamed(SHARED, absorbed)),
    "sarvam_mla": Architecture(by_class(deepseek_v3), renamed(SHARED, absorbed)),
    "axk1": Architecture(
        by_class(axk1), renamed({**SHARED, "mlp.out_norm": "post_mlp_layernorm"}, absorbed), unused=_DENSE_NORMS
    ),
    "dots1": Architecture(by_class(dots1), renamed(SHARED, experts_in())),
}
