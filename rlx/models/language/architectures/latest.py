"""Models of 2025 and 2026 that are others of this folder with little else: CWM (Llama with windows), Jais 2 and BitNet
(Microsoft; norms inside attention and MLP), Solar Open, K-EXAONE, GLM-4.7-Flash, Youtu, MiniCPM3, Mellum 2, AFMoE
(Arcee) and DBRX (Databricks, 2024)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlx.formats.settings import warn_ignored
from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Find,
    Recipe,
    attention,
    by_class,
    derived,
    experts_in,
    fused,
    llama_like,
    renamed,
    same_name,
    turned,
    windows_of,
)
from rlx.models.language.architectures.deepseek import MTP, SHARED, absorbed, latent_attention, routed
from rlx.models.language.architectures.qwen import experts_of
from rlx.models.language.config import (
    MOST_EXPERTS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_WIDTH,
    Experts,
    Fields,
    LanguageConfig,
    Mixer,
)


def _layers(f: Fields) -> int:
    return f.count("num_hidden_layers", MOST_LAYERS)


def dense_layers(f: Fields, otherwise: Callable[[int], bool]) -> frozenset[int]:
    """The layers that have an MLP in a model of experts: those that `mlp_layer_types` calls dense, or by number."""
    layers, kinds = _layers(f), f.content.get("mlp_layer_types")
    if kinds is None:
        return frozenset(i for i in range(layers) if otherwise(i))
    if not isinstance(kinds, list) or len(kinds) != layers or not {"dense", "sparse"}.issuperset(map(str, kinds)):
        f.wrong("mlp_layer_types", f"a list of {layers} words, dense or sparse")
    return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")


def cwm(f: Fields) -> LanguageConfig:
    f.must_be("attention_bias", False)
    windows = windows_of(f, _layers(f), lambda i: i % 4 != 0)
    return llama_like(f, "cwm", mlp_bias=f.flag("mlp_bias", False), attention=attention(f, _layers(f), windows=windows))


def jais2(f: Fields) -> LanguageConfig:
    bias = f.flag("attention_bias", True)
    return llama_like(
        f, "jais2", norm="layer", eps=f.number("layer_norm_eps", 0, 1), gated=False, mlp_bias=f.flag("mlp_bias", True),
        attention=attention(f, _layers(f), qkv_bias=bias, out_bias=bias),
    )  # fmt: skip


def plain_llama(name: str) -> Callable[[Fields], LanguageConfig]:
    """Families whose settings alone are their own: InternLM3, IQuest-Coder and EXAONE 3.5 are made as Llamas."""

    def read(f: Fields) -> LanguageConfig:
        bias = f.flag("attention_bias", False)
        f.must_be("clip_qkv", None)
        f.must_be("use_sliding_window", False)
        mixed = attention(f, _layers(f), qkv_bias=bias, out_bias=bias)
        return llama_like(f, name, mlp_bias=f.flag("mlp_bias", False), attention=mixed)

    return read


def bitnet(f: Fields) -> LanguageConfig:
    bias = f.flag("attention_bias", False)
    mixed = attention(f.but(head_dim=None), _layers(f), qkv_bias=bias, out_bias=bias, out_norm=True)
    return llama_like(f, "bitnet", mlp_norm=True, attention=mixed)


def solar_open(f: Fields) -> LanguageConfig:
    experts, _ = routed(f, _layers(f))
    mixed = attention(f, _layers(f), qkv_bias=f.flag("attention_bias", False))
    return llama_like(f, "solar_open", inner=experts.inner, attention=mixed, experts=experts)


def exaone_moe(f: Fields) -> LanguageConfig:
    layers, every = _layers(f), f.count("sliding_window_pattern", MOST_LAYERS, 4)
    own = f.but(n_shared_experts=f.content.get("num_shared_experts"), n_routed_experts=f.content.get("num_experts"))
    experts, dense = routed(own, layers)
    ropes, near = attention(f, layers).ropes, windows_of(f, layers, lambda i: (i + 1) % every != 0)
    ropes = tuple(None if w is None else rope for w, rope in zip(near, ropes, strict=True))
    mixed = attention(f, layers, qk_norm="head", windows=near, ropes=ropes)
    return llama_like(
        f, "exaone_moe", attention=mixed, experts=experts, dense=dense_layers(f, lambda i: i in dense)
    )


def _latent(f: Fields, architecture: str, interleaved: bool, **changed: Any) -> LanguageConfig:
    mixer: tuple[Mixer, ...] = ("latent",)
    layers = _layers(f)
    mixed = latent_attention(f, layers, interleaved)
    return llama_like(f, architecture, attention=mixed, mixers=mixer * layers, **changed)


def glm4_moe_lite(f: Fields) -> LanguageConfig:
    experts, _ = routed(f, _layers(f))
    return _latent(
        f, "glm4_moe_lite", f.flag("rope_interleave", True), experts=experts, dense=dense_layers(f, lambda i: i == 0),
        heads_beyond=True,
    )  # fmt: skip


def youtu(f: Fields) -> LanguageConfig:
    if f.has("pad_token_id"):  # The class of transformers makes its embedding 0 as it loads.
        why = "the embedding of that token stays as the file has it"
        warn_ignored(f.where, "pad_token_id", f.content["pad_token_id"], why)
    return _latent(f, "youtu", f.flag("rope_interleave", True))


def minicpm3(f: Fields) -> LanguageConfig:
    layers, width = _layers(f), f.count("hidden_size", MOST_WIDTH)
    size = width // f.count("num_attention_heads", MOST_WIDTH)
    f = f.but(v_head_dim=f.content.get("v_head_dim") or size)
    return _latent(
        f, "minicpm3", False, embedding_scale=f.number("scale_emb", -1e6, 1e6),
        residual_scale=f.number("scale_depth", -1e6, 1e6, layers**0.5) / layers**0.5,
        logit_scale=f.number("dim_model_base", 1e-6, 1e9, width) / width, mlp_bias=f.flag("mlp_bias", False),
    )  # fmt: skip


def mellum(f: Fields) -> LanguageConfig:
    layers, bias = _layers(f), f.flag("attention_bias", False)
    near = windows_of(f, layers, lambda i: False)
    size = attention(f.but(rope_parameters=None, rope_scaling=None), layers).head_size
    kinds = {w: "full_attention" if w is None else "sliding_attention" for w in set(near)}
    ropes = {w: f.rope(size, 10000.0, kind) for w, kind in kinds.items()}
    experts, _ = experts_of(f, layers, True)
    mixed = attention(
        f, layers, qk_norm="head", qkv_bias=bias, out_bias=bias, windows=near, ropes=tuple(ropes[w] for w in near)
    )
    return llama_like(f, "mellum", attention=mixed, experts=experts, dense=dense_layers(f, lambda i: False))


def afmoe(f: Fields) -> LanguageConfig:
    layers, every = _layers(f), f.count("global_attn_every_n_layers", MOST_LAYERS)
    f.must_be("attention_bias", False)
    count, inner = f.count("num_experts", MOST_EXPERTS), f.count("moe_intermediate_size", MOST_INNER)
    experts = Experts(
        count, f.count("num_experts_per_tok", count), inner, order="sigmoid", corrected=True, floor=1e-20, added=True,
        scaling=f.number("route_scale", 0, 1e6), shared_gated=False,
        shared=inner * f.count("num_shared_experts", MOST_EXPERTS, least=0),
    )  # fmt: skip
    near = windows_of(f, layers, lambda i: (i + 1) % every != 0)
    ropes = tuple(None if w is None else rope for w, rope in zip(near, attention(f, layers).ropes, strict=True))
    mixed = attention(f, layers, qk_norm="head", gated=True, windows=near, ropes=ropes)
    return llama_like(
        f, "afmoe", placement="around", attention=mixed, experts=experts,
        dense=frozenset(range(f.count("num_dense_layers", MOST_LAYERS, least=0))),
        embedding_scale=f.count("hidden_size", MOST_WIDTH) ** 0.5 if f.flag("mup_enabled", False) else 1.0,
    )  # fmt: skip


def _part(f: Fields, name: str) -> Fields:
    """The settings of a part of a model."""
    value = f.content.get(name) or {}
    return Fields(value, f"{f.where}: {name}") if isinstance(value, dict) else f.wrong(name, "an object of settings")


def dbrx(f: Fields) -> LanguageConfig:
    layers, heads, mixture = _layers(f), _part(f, "attn_config"), _part(f, "ffn_config")
    count, power = mixture.count("moe_num_experts", MOST_EXPERTS, 4), "moe_normalize_expert_weights"
    mixture.must_be(power, 1.0, 1, None)
    act = Fields(mixture.content.get("ffn_act_fn") or {}, mixture.where).choice("name", ACTIVATIONS, "silu")
    inner = mixture.count("ffn_hidden_size", MOST_INNER, 3584)
    experts = Experts(
        count, mixture.count("moe_top_k", count, 1), inner, renormalize=mixture.content.get(power, 1.0) is not None
    )
    f = f.but(num_key_value_heads=heads.content.get("kv_n_heads", 1), head_dim=None)
    base, scaling = heads.content.get("rope_theta"), f.content.get("rope_parameters") or {}
    if base is not None:  # that of the models as made; a class of another program may pass over it
        if isinstance(scaling, dict) and scaling.get("rope_theta", base) not in (base, 10000.0):
            heads.wrong("rope_theta", "none, or that of rope_parameters")
        f = f.but(rope_parameters=None, rope_scaling=None, rope_theta=base)
    mixed = attention(f, layers, clip=heads.maybe("clip_qkv", 1e-6, 1e6))
    return llama_like(
        f, "dbrx", norm="layer", norm_bias=False, eps=1e-5, activation=act, inner=inner, experts=experts,
        attention=mixed,
    )  # fmt: skip


def in_one(parts: str, then: Find) -> Find:
    """DBRX's experts, one below the other in a tensor for each of their matrices, the last of them turned."""

    def find(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
        before, mark, kind = name.partition(".mlp.experts.")
        e = config.experts
        if not mark or e is None:
            return then(name, config, tensors)
        own = {"gate_proj": "w1", "up_proj": "v1", "down_proj": "w2"}[kind.removesuffix(".weight")]
        shape = (e.count, e.inner, config.width)
        whole = f"{before}.{parts}.{own}"
        if own == "w2":
            return derived(whole, lambda w: turned(w.reshape(shape)))
        return Recipe((whole,), lambda values: values[0].reshape(shape))  # type: ignore[union-attr]

    return find


_BITNET = {"self_attn.out_norm": "self_attn.attn_sub_norm", "mlp.norm": "mlp.ffn_sub_norm"}
_AFMOE = {
    "mlp.gate": "mlp.router.gate", "mlp.gate.correction": "mlp.expert_bias", "self_attn.q_gate": "self_attn.gate_proj",
    "mlp.shared_expert": "mlp.shared_experts", "pre_feedforward_layernorm": "pre_mlp_layernorm",
    "post_feedforward_layernorm": "post_mlp_layernorm",
}  # fmt: skip
_DBRX = {
    "embed_tokens": "wte", "layers": "blocks", "norm": "norm_f", "self_attn.o_proj": "norm_attn_norm.attn.out_proj",
    "input_layernorm": "norm_attn_norm.norm_1", "post_attention_layernorm": "norm_attn_norm.norm_2",
    "mlp.gate": "ffn.router.layer",
}  # fmt: skip


def exaone_names(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Corrections lie beside the router, or in it."""
    if name.endswith(".mlp.gate.correction"):
        other = name.replace("gate.correction", "e_score_correction_bias")
        if other in tensors:
            return Recipe((other,))
    return renamed(SHARED, experts_in())(name, config, tensors)


_EXAONE = {
    "embed_tokens": "wte", "layers": "h", "norm": "ln_f", "input_layernorm": "ln_1", "post_attention_layernorm": "ln_2",
    "self_attn": "attn.attention", "self_attn.o_proj": "attn.attention.out_proj", "mlp.gate_proj": "mlp.c_fc_0",
    "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj",
}  # fmt: skip


def exaone_3(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """Names as GPT-2 has them, or as Llama has them in newer files."""
    return (renamed(_EXAONE) if "wte.weight" in tensors else same_name)(name, config, tensors)


_ROUTED = renamed(SHARED, experts_in())
ARCHITECTURES = {
    "cwm": Architecture(by_class(cwm)),
    "jais2": Architecture(by_class(jais2)),
    "internlm3": Architecture(by_class(plain_llama("internlm3"))),
    "iquestcoder": Architecture(by_class(plain_llama("iquestcoder"))),
    "exaone": Architecture(
        by_class(plain_llama("exaone")), exaone_3, ("transformer.", "model."),
        modules=(
            ("transformer.h.", "model.layers."), ("attn.attention.out_proj", "self_attn.o_proj"),
            ("attn.attention.", "self_attn."), ("mlp.c_fc_0", "mlp.gate_proj"), ("mlp.c_fc_1", "mlp.up_proj"),
            ("mlp.c_proj", "mlp.down_proj"),
        ),
    ),
    "bitnet": Architecture(by_class(bitnet), renamed(_BITNET)),
    "solar_open": Architecture(by_class(solar_open), _ROUTED),
    "exaone_moe": Architecture(by_class(exaone_moe), exaone_names, unused=MTP),
    "glm4_moe_lite": Architecture(by_class(glm4_moe_lite), renamed(SHARED, absorbed)),
    "youtu": Architecture(by_class(youtu), absorbed),
    "minicpm3": Architecture(by_class(minicpm3), absorbed),
    "mellum": Architecture(by_class(mellum), experts_in(), unused=MTP),
    "afmoe": Architecture(by_class(afmoe), renamed(_AFMOE, experts_in())),
    "dbrx": Architecture(
        by_class(dbrx), renamed(_DBRX, in_one("ffn.experts.mlp", fused("norm_attn_norm.attn.Wqkv", "apart"))),
        ("transformer.",),
    ),
}  # fmt: skip
