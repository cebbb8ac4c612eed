"""Encoders with relative position biases or RoPE: MPNet, T5's encoders, ModernBERT, EuroBERT, RoFormer."""

from __future__ import annotations

from typing import Any

from rlx.models.encoders.config import ACTS, BERT, PLAIN, EncoderConfig, Relative, encoder
from rlx.models.encoders.roberta import HEADS, behind_padding, narrow
from rlx.models.language.config import (
    MOST_HEADS,
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    Rope,
)

MOST_BUCKETS = 1 << 16


def mpnet(f: Fields) -> EncoderConfig:
    layer = "encoder.layer.#.attention."
    names = {**PLAIN, **{part: f"{layer}attn.{part}" for part in "qkv"}, "out": f"{layer}attn.o",
             "first_norm": f"{layer}LayerNorm", "relative": "encoder.relative_attention_bias"}  # fmt: skip
    if f.count("relative_attention_num_buckets", MOST_BUCKETS, least=4) < 32:
        f.wrong("relative_attention_num_buckets", "32 or more, of which the model reads 32")
    rows = f.count("relative_attention_num_buckets", MOST_BUCKETS)
    return encoder(f, names, prefix="mpnet.", type_vocab_size=0, relative=Relative(32, rows=rows), unused=HEADS,
                   **behind_padding(f, 1))  # fmt: skip


def t5(f: Fields, each: bool = False) -> EncoderConfig:
    """The encoder of a T5; UMT5 has a table of distances in each layer."""
    block = "encoder.block.#.layer."
    attention, mlp = f"{block}0.SelfAttention.", f"{block}1.DenseReluDense."
    names = {"words": "shared", "relative": f"{attention}relative_attention_bias",
             "last_norm": "encoder.final_layer_norm", "first_norm": f"{block}0.layer_norm",
             "second_norm": f"{block}1.layer_norm", "out": f"{attention}o",
             **{part: f"{attention}{part}" for part in "qkv"}, "down": f"{mlp}wo"}  # fmt: skip
    kind = f.content.get("feed_forward_proj")
    gated = isinstance(kind, str) and kind.startswith("gated-")
    act = {"gated-gelu": "gelu_new"}.get(str(kind), str(kind).removeprefix("gated-"))
    if not isinstance(kind, str) or act not in ACTS:
        f.wrong("feed_forward_proj", f"one of {', '.join(ACTS)}, perhaps behind 'gated-'")
    if "is_gated_act" in f.content:  # it overrides feed_forward_proj, and null counts as false
        gated = f.flag("is_gated_act", False)
    act = f.choice("dense_act_fn", {name: name for name in ACTS}, act)
    names |= {"gate": f"{mlp}wi_0", "up": f"{mlp}wi_1"} if gated else {"up": f"{mlp}wi"}
    buckets = f.count("relative_attention_num_buckets", MOST_BUCKETS, least=4)
    most = f.count("relative_attention_max_distance", MOST_POSITIONS, least=buckets // 4 + 1)
    return encoder(
        f, names, max_position_embeddings=f.count("n_positions", MOST_POSITIONS, 1 << 16), type_vocab_size=0,
        intermediate_size=f.count("d_ff", MOST_INNER), hidden_act=ACTS[act], gated=gated, norm="rms",
        layer_norm_eps=f.number("layer_norm_epsilon", 0, 1), placement="pre", embedding_norm=False, scale=1.0,
        head_size=f.count("d_kv", MOST_WIDTH), relative=Relative(buckets, most, each), plain=frozenset(names),
        aliases={"shared.weight": "encoder.embed_tokens.weight"},
        unused=("decoder.", "lm_head.", "classification_head.", *HEADS),
    )  # fmt: skip


def modernbert(f: Fields) -> EncoderConfig:
    """Layers with a window and layers without one, with a RoPE for each kind; the first layer's attention has no
    norm."""
    layers, windowed = f.count("num_hidden_layers", MOST_LAYERS), "sliding_attention"
    every = f.count("global_attn_every_n_layers", MOST_LAYERS, 3)
    kinds = f.kinds(layers) or [windowed if i % every else "full_attention" for i in range(layers)]
    if not set(kinds) <= {windowed, "full_attention"}:
        f.wrong("layer_types", f"{windowed} and full_attention alone")
    size = f.count("hidden_size", MOST_WIDTH) // f.count("num_attention_heads", MOST_HEADS)
    bases = {"full_attention": ("global_rope_theta", 160000.0), windowed: ("local_rope_theta", 10000.0)}
    ropes = {kind: _rope_of(f, size, kind, *bases[kind]) for kind in set(kinds)}
    window = f.count("local_attention", MOST_POSITIONS) // 2
    names = {"words": "embeddings.tok_embeddings", "embedding_norm": "embeddings.norm", "qkv": "layers.#.attn.Wqkv",
             "out": "layers.#.attn.Wo", "first_norm": "layers.#.attn_norm", "second_norm": "layers.#.mlp_norm",
             "up": "layers.#.mlp.Wi", "down": "layers.#.mlp.Wo", "last_norm": "final_norm"}  # fmt: skip
    plain = set() if f.flag("attention_bias", False) else {"qkv", "out"}
    plain |= set() if f.flag("mlp_bias", False) else {"up", "down"}
    return encoder(
        f, names, prefix="model.", placement="pre", bare_layers=frozenset((0,)), joined=True, gated=True,
        norm_bias=f.flag("norm_bias", False), plain=frozenset(plain), type_vocab_size=0,
        hidden_act=f.choice("hidden_activation", ACTS), layer_norm_eps=f.number("norm_eps", 0, 1),
        ropes=tuple(ropes[kind] for kind in kinds),
        windows=tuple(window if kind == windowed else None for kind in kinds),
        unused=("head.", "decoder.", *HEADS),
    )  # fmt: skip


def _rope_of(f: Fields, size: int, kind: str, old: str, base: float) -> Rope:
    """The rope of a kind of layers, whose base has a name of its own in older files."""
    base = f.number(old, 1, 1e15, base)
    given = f.content.get("rope_parameters")
    if isinstance(given, dict) and isinstance(own := given.get(kind), dict):
        return f.rope(size, base, kind) if "rope_theta" in own else f.but(rope_theta=None).rope(size, base, kind)
    if given:
        f.wrong("rope_parameters", f"an object with settings for {kind}")
    return f.but(rope_parameters=None, rope_theta=None).rope(size, base)


def eurobert(f: Fields) -> EncoderConfig:
    heads = f.count("num_attention_heads", MOST_HEADS)
    size = f.count("head_dim", MOST_WIDTH, f.count("hidden_size", MOST_WIDTH) // heads)
    kv = f.count("num_key_value_heads", MOST_HEADS, heads)
    if heads % kv:
        f.wrong("num_key_value_heads", f"a number that divides the {heads} heads")
    names = {"words": "embed_tokens", "first_norm": "layers.#.input_layernorm", "last_norm": "norm",
             "second_norm": "layers.#.post_attention_layernorm", "out": "layers.#.self_attn.o_proj",
             **{part: f"layers.#.self_attn.{part}_proj" for part in "qkv"},
             **{part: f"layers.#.mlp.{part}_proj" for part in ("gate", "up", "down")}}  # fmt: skip
    plain = set() if f.flag("attention_bias", False) else {"q", "k", "v", "out"}
    plain |= set() if f.flag("mlp_bias", False) else {"gate", "up", "down"}
    return encoder(
        f, names, prefix="model.", placement="pre", norm="rms", layer_norm_eps=f.number("rms_norm_eps", 0, 1),
        embedding_norm=False, gated=True, head_size=size, kv_heads=kv, plain=frozenset(plain), type_vocab_size=0,
        ropes=(f.rope(size),) * f.count("num_hidden_layers", MOST_LAYERS), unused=HEADS,
    )  # fmt: skip


def roformer(f: Fields) -> EncoderConfig:
    """RoFormer: RoPE of pairs by a table in the files, applied to q and k, and to v where the settings say so."""
    own = {part: name for part, name in BERT.items() if part != "places"} | {"turns": "encoder.embed_positions"}
    if f.content.get("embedding_size") is None:
        f = f.but(embedding_size=f.content.get("hidden_size"))
    if f.content["embedding_size"] == f.content.get("hidden_size"):
        own.pop("project")
    parts = "qkv" if f.flag("rotary_value", False) else "qk"
    return narrow(f, "roformer.", names=own, places=0, mixer="turned", extra=parts, unused=HEADS)


ARCHITECTURES: dict[str, Any] = {
    "mpnet": mpnet,
    **dict.fromkeys(("t5", "mt5"), t5),
    "umt5": lambda f: t5(f, each=True),
    "modernbert": modernbert,
    "eurobert": eurobert,
    "roformer": roformer,
}
