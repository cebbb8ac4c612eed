"""Gemma 3n and Gemma 4 in GGUF, whose settings differ from layer to layer: windows, RoPE, keys of earlier layers, in
Gemma 4 also the heads. Of Gemma 3n llama.cpp has the shares of sparse gates and the number of layers with keys of their
own in its code, so that a file with other ones is refused."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np

from rlx.dtypes import f32
from rlx.formats.files import shown
from rlx.formats.gguf.names import Family

_OWN_KEYS = 20  # how many layers of Gemma 3n have keys of their own
_SPARSE, _SPARSE_LAYERS = 0.95, 10
_EVERY = 5  # every so-many-th layer of Gemma 3n has no window
_CAP, _NEAR_BASE = 30.0, 10000.0  # the values of a file that does not say
IDLE = ("attn_k.weight", "attn_v.weight", "attn_k_norm.weight")
NOT_TURNED = 1e30  # the divisor of frequencies that are 0


def layered(
    family: Family, config: dict[str, Any], metadata: Mapping[str, Any], tensors: Mapping[str, Any]
) -> str | None:
    """Sets the settings of the layers in a config, from those of a file and its tensors. Returns: an error message, or
    None."""
    layers, own = config["num_hidden_layers"], f"{family.architecture}."
    said = {key.removeprefix(own): value for key, value in metadata.items() if key.startswith(own)}
    flags, shared = said.get("attention.sliding_window_pattern"), said.get("attention.shared_kv_layers", 0)
    if family.stacks and (flags is None or (type(flags) is int and 1 < flags <= layers)):
        every = flags or _EVERY
        flags = [(i + 1) % every != 0 for i in range(layers)]
    if not isinstance(flags, list) or len(flags) != layers or not all(type(slides) is bool for slides in flags):
        return f"{own}attention.sliding_window_pattern is {shown(flags)}, expected a flag for each of {layers} layers"
    if type(shared) is not int or not 0 <= shared < layers:
        return f"{own}attention.shared_kv_layers is {shown(shared)}, expected a number below the {layers} of layers"
    first = layers - shared
    for slides, source in ((False, first - 1), (True, first - 2)):  # the layer whose keys later ones of each kind take
        if slides in flags[first:] and (source < 0 or flags[source] != slides):
            kind = "a window" if slides else "no window"
            told = f"{own}attention.sliding_window_pattern is {shown(flags)}"
            return f"{told}; layer {source}, whose keys later layers with {kind} take, must have {kind}"
    table = tensors.get("per_layer_token_embd.weight")
    far = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    near = {**far, "rope_theta": said.get("rope.freq_base_swa", _NEAR_BASE)}
    config |= {
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in flags],
        "num_kv_shared_layers": shared, "rope_parameters": {"full_attention": far, "sliding_attention": near},
        "vocab_size_per_layer_input": table.shape[0] if table is not None and table.shape else config["vocab_size"],
    }  # fmt: skip
    return (_constants if family.stacks else _sizes)(config, said, own, tensors)


def required_alone(config: Mapping[str, Any], name: str) -> bool:
    """Whether a tensor is one that readers of Gemma 3n require, and use for nothing: keys and values of layers that
    attend to those of earlier ones."""
    _, number, part = (*name.split(".", 2), "", "")[:3]
    last = config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
    return part in IDLE and number.isdecimal() and int(number) >= last


def sparsity_scales(shares: Sequence[float]) -> list[float]:
    """How many deviations above the mean the gates of each layer are cut off; -inf where none is."""
    return [NormalDist().inv_cdf(share) if share else -np.inf for share in shares]


def _constants(config: dict[str, Any], said: Mapping[str, Any], own: str, tensors: Mapping[str, Any]) -> str | None:
    layers = config["num_hidden_layers"]
    shares = [_SPARSE if i < _SPARSE_LAYERS else 0.0 for i in range(layers)]
    config |= {"activation_sparsity_pattern": shares, "final_logit_softcapping": _CAP}
    scales, usual = said.get("activation_sparsity_scale"), np.asarray(sparsity_scales(shares), np.float32)
    alike = isinstance(scales, list) and len(scales) == layers and all(type(x) is float for x in scales)
    if scales is not None and not (alike and np.allclose(np.asarray(scales, np.float32), usual, 1e-5)):
        what = f"of a share of {_SPARSE} in the first {_SPARSE_LAYERS} layers"
        return f"{own}activation_sparsity_scale is {shown(scales)}, expected those {what}"
    for key, value in (("attention.shared_kv_layers", max(0, layers - _OWN_KEYS)), ("final_logit_softcapping", _CAP)):
        if said.get(key, value) != value:
            return f"{own}{key} is {shown(said[key])}, expected {value}: readers take that number"
    return None


def _sizes(config: dict[str, Any], said: Mapping[str, Any], own: str, tensors: Mapping[str, Any]) -> str | None:
    """Gemma 4's heads, widths, experts and divisors of frequencies."""
    layers, far = config["num_hidden_layers"], config["rope_parameters"]["full_attention"]
    slides = [kind == "sliding_attention" for kind in config["layer_types"]]
    sizes = []
    for end in ("", "_swa"):
        size, value, turned = (said.get(f"{key}{end}") for key in (
            "attention.key_length", "attention.value_length", "rope.dimension_count"))  # fmt: skip
        if type(size) is not int or size != value or size != (size if turned is None else turned):
            return f"{own}attention.key_length{end} is {shown(size)}, expected that of values and of RoPE"
        sizes.append(size)
    heads = said.get("attention.head_count_kv")
    heads = heads if isinstance(heads, list) else [heads] * layers
    inner = said.get("feed_forward_length")
    inner = inner if isinstance(inner, list) else [inner] * layers
    if len(heads) != layers or len(inner) != layers:
        return f"{own}attention.head_count_kv or feed_forward_length is no number for each of {layers} layers"
    first = layers - config["num_kv_shared_layers"]
    wide = first < layers and inner == [inner[0]] * first + [2 * inner[0]] * (layers - first)
    if not wide and set(inner) != {inner[0]}:
        return f"{own}feed_forward_length is {shown(inner)}, expected one width, or twice that in layers without keys"
    keyed = [i for i in range(first) if f"blk.{i}.attn_v.weight" not in tensors]
    if keyed and keyed != [i for i in range(first) if not slides[i]]:
        return f"layers {shown(keyed)} lack attn_v.weight, expected all without a window or none"
    config |= {
        "head_dim": sizes[1], "global_head_dim": sizes[0], "intermediate_size": inner[0], "use_double_wide_mlp": wide,
        "per_layer_config": {i: {"head_dim": sizes[slide], "num_key_value_heads": heads[i]}
                             for i, slide in enumerate(slides)},
        "attention_k_eq_v": bool(keyed), "enable_moe_block": bool(said.get("expert_count")),
        "num_experts": said.get("expert_count"), "top_k_experts": said.get("expert_used_count"),
        "moe_intermediate_size": said.get("expert_feed_forward_length"),
        "final_logit_softcapping": said.get("final_logit_softcapping", _CAP) or None,
    }  # fmt: skip
    if all(slides):
        return None
    divisors = tensors.get("rope_freqs.weight")
    held = np.asarray(divisors.read(), np.float64) if divisors is not None and divisors.dtype is f32 else None
    turned = 0 if held is None else sum(1 for _ in itertools.takewhile(lambda x: x < 1e20, held))
    if held is None or held.shape != (sizes[0] // 2,) or len({*held[:turned]}) > 1 or not (held[turned:] >= 1e20).all():
        return "rope_freqs.weight holds no divisor of the first frequencies, and no infinite ones behind it"
    factor = float(held[0]) if turned else 1.0
    if turned < len(held) or factor != 1.0:
        far |= {"rope_type": "proportional", "partial_rotary_factor": min(1.0, (turned + 0.25) / len(held)),
                "factor": factor}
    return None
