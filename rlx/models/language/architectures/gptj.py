"""GPT-J (Wang & Komatsuzaki, 2021) and CodeGen (Nijkamp et al. 2022), with attention and MLP in parallel after one
norm; GPT-Neo (Black et al. 2021), with windows and unscaled scores; GPTBigCode (Allal et al. 2023), with one KV
head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.models.language.architectures.base import (
    ACTIVATIONS,
    Architecture,
    Recipe,
    attention,
    block_rows,
    by_class,
    fused,
    llama_like,
    renamed,
    same_name,
    some_rows,
)
from rlx.models.language.config import (
    MOST_INNER,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_WIDTH,
    Fields,
    LanguageConfig,
)


def _read(f: Fields, architecture: str, **changed: Any) -> LanguageConfig:
    width = f.count("hidden_size", MOST_WIDTH)
    name = "intermediate_size" if "intermediate_size" in f.content else "n_inner"
    return llama_like(
        f, architecture, norm="layer", eps=f.number("layer_norm_epsilon", 0, 1), gated=False, mlp_bias=True,
        inner=f.count(name, MOST_INNER, 4 * width), activation=f.choice("activation_function", ACTIVATIONS), **changed,
    )  # fmt: skip


def _turned(f: Fields, architecture: str) -> LanguageConfig:
    layers = f.count("num_hidden_layers", MOST_LAYERS)
    part = f.but(rope_interleaved=True).rope(f.count("rotary_dim", MOST_WIDTH, least=2))
    mixed = attention(f.but(num_key_value_heads=None, head_dim=None), layers, ropes=(part,) * layers)
    return _read(f, architecture, parallel=1, head_bias=True, attention=mixed)


def gptj(f: Fields) -> LanguageConfig:
    return _turned(f, "gptj")


def codegen(f: Fields) -> LanguageConfig:
    return _turned(f, "codegen")


def gpt_neo(f: Fields) -> LanguageConfig:
    layers, kinds = f.count("num_hidden_layers", MOST_LAYERS), f.content.get("attention_types")
    try:
        each = [k for names, n in kinds or [[["global", "local"], 12]] for k in list(names) * min(n, layers)]
    except (TypeError, ValueError):
        each = []
    if len(each) != layers or not set(each) <= {"global", "local"}:
        f.wrong("attention_types", f"lists of global and local with numbers, {layers} kinds in all")
    near = f.count("window_size", MOST_POSITIONS) - 1
    mixed = attention(
        f.but(num_key_value_heads=None, head_dim=None), layers, ropes=(None,) * layers, scale=1.0, out_bias=True,
        windows=tuple(near if kind == "local" else None for kind in each),
    )  # fmt: skip
    return _read(f, "gpt_neo", learned_positions=True, attention=mixed)


def gpt_bigcode(f: Fields) -> LanguageConfig:
    layers, one = f.count("num_hidden_layers", MOST_LAYERS), f.flag("multi_query", True)
    f.must_be("add_cross_attention", False)
    plain: dict[str, Any] = {} if f.flag("scale_attn_weights", True) else {"scale": 1.0}
    own = f.but(num_key_value_heads=1 if one else None, head_dim=None)
    mixed = attention(own, layers, ropes=(None,) * layers, qkv_bias=True, out_bias=True, **plain)
    return _read(f, "gpt_bigcode", learned_positions=True, attention=mixed)


def in_four_parts(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """CodeGen's joined matrix: four groups of rows, each with a quarter of the heads of q, then of v, then of k."""
    before, mark, rest = name.partition(".self_attn.")
    if not mark or rest[1:] != "_proj.weight" or rest[0] not in "qvk":
        return same_name(name, config, tensors)
    part = config.width // 4
    return some_rows(f"{before}.attn.qkv_proj.weight", block_rows((part,) * 3, 4, ("qvk".index(rest[0]),)))


_TOP = {"embed_tokens": "wte", "positions": "wpe", "norm": "ln_f", "layers": "h", "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2"}  # fmt: skip
_J = {**_TOP, "self_attn.o_proj": "attn.out_proj", "self_attn": "attn", "mlp.up_proj": "mlp.fc_in",
      "mlp.down_proj": "mlp.fc_out"}  # fmt: skip
_NEO = {**_TOP, "self_attn.o_proj": "attn.attention.out_proj", "self_attn": "attn.attention", "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj"}  # fmt: skip
_BIG = {**_NEO, "self_attn.o_proj": "attn.c_proj"}
_PREFIX = ("transformer.",)
ARCHITECTURES = {
    "gptj": Architecture(by_class(gptj), renamed(_J), _PREFIX),
    "codegen": Architecture(by_class(codegen), renamed(_J, in_four_parts), _PREFIX),
    "gpt_neo": Architecture(by_class(gpt_neo), renamed(_NEO), _PREFIX),
    "gpt_bigcode": Architecture(by_class(gpt_bigcode), renamed(_BIG, fused("attn.c_attn", "grouped")), _PREFIX),
}
