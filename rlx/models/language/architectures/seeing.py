"""Models that see beside reading, for text alone: the text model within, which a text without images meets as it is.

A text's positions are the same number in each part of the ropes of Qwen-VL and GLM-V (temporal, height, width), whose
turns then are those of a plain rope.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rlx.errors import ModelFormatError
from rlx.formats.files import shown
from rlx.models.language.architectures.base import CAUSAL, Architecture, Recipe, class_fields
from rlx.models.language.config import MOST_HEADS, MOST_WIDTH, Fields, LanguageConfig
from rlx.records import replace

_PLAIN = "llama mistral qwen2 qwen3 qwen3_moe"
# Of each outer model_type, the text models that it may have, the first where a file names none.
_TEXTS = {
    "aria": "aria_text",
    "llama4": "llama4_text",
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llava": _PLAIN,
    "llava_next": _PLAIN,
    "llava_onevision": "qwen2 qwen3",
    "vipllava": "llama",
    "mistral3": "mistral ministral3",
    "internvl": "qwen2 llama qwen3 qwen3_moe",
    "idefics3": "llama",
    "smolvlm": "llama",
    "lfm2_vl": "lfm2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
}
# Text models that stand in such folders alone, each with the one whose blocks and names of weights it has.
_ALIKE = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
}
# What the classes have whatever a file says, and settings that they pass over, as the family alone has them.
_ALWAYS: dict[str, dict[str, Any]] = {"glm4v_text": {"attention_bias": True}}
_PASSED_OVER: dict[str, tuple[tuple[str, Any], ...]] = {
    "gemma3_text": (("final_logit_softcapping", None),),
    "qwen3_vl_text": (("use_sliding_window", False),),
    "qwen3_vl_moe_text": (("use_sliding_window", False), ("norm_topk_prob", True)),
    "glm4v_moe_text": (("use_qk_norm", False),),
}
_EVEN_HEADS = ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text")  # Their heads are parts of the width.
_FLAT = ("qwen2_vl", "qwen2_5_vl")  # Published files of these have the text's settings outside.
_PARTS = """vision_tower vision_model visual multi_modal_projector connector image_newline embed_vision audio_tower
embed_audio"""
ASIDE = re.compile(rf"^(?:model\.)?({'|'.join(_PARTS.split())})(?:\.|$)")


def text_fields(f: Fields) -> Fields:
    """The settings of the text model, with what its class takes for granted."""
    kind = f.content["model_type"]
    known, inner, where = _TEXTS[kind].split(), f.content.get("text_config"), f"{f.where}: text_config"
    if inner is None and kind in _FLAT:
        inner, where = {k: v for k, v in f.content.items() if k not in ("model_type", "vision_config")}, f.where
    if not isinstance(inner, dict):
        f.wrong("text_config", "an object of settings")
    own = inner.get("model_type", known[0])
    if own not in known:
        raise ModelFormatError(
            f"{where}: model_type is {shown(own)}; of {kind} rlx has the text models {', '.join(known)} alone"
        )
    if own == "mistral" and "sliding_window" not in inner:  # programs differ in what that means
        Fields(inner, where).wrong("sliding_window", "a number, or null written out for no window")
    settings = dict(inner)
    for name in ("rope_parameters", "rope_scaling"):
        if own in _ALIKE and isinstance(settings.get(name), dict):
            settings[name] = _plain_rope(settings[name])
    text = class_fields(Fields({**settings, "model_type": own, **_ALWAYS.get(own, {})}, where))
    for name, value in (("is_causal", True), *_PASSED_OVER.get(own, ())):
        text.must_be(name, value, None)
    text.must_be("use_bidirectional_attention", False, None, *CAUSAL.get(own, ()))
    if own in _ALIKE:
        text = _alike(text, own)
    tied = outer_tied(f) or text.flag("tie_word_embeddings", False)
    return text.but(model_type=_ALIKE.get(own, own), tie_word_embeddings=tied)


def outer_tied(f: Fields) -> bool:
    """Whether the embeddings are tied in the class of the whole model, which goes by the outer word; the text model's
    goes by the inner. Where they differ, the file decides."""
    return class_fields(f).flag("tie_word_embeddings", False)


def _alike(text: Fields, own: str) -> Fields:
    """The settings with what the family alone would take for granted otherwise."""
    if own in _EVEN_HEADS and text.has("head_dim"):
        heads = text.count("num_attention_heads", MOST_HEADS)
        if text.count("head_dim", MOST_WIDTH) * heads != text.count("hidden_size", MOST_WIDTH):
            text.wrong("head_dim", f"none, or hidden_size over the {heads} heads")
    usual = {"head_dim": None, "partial_rotary_factor": 1.0}
    return Fields({**usual, **text.content, **dict(_PASSED_OVER.get(own, ()))}, text.where)


def _plain_rope(settings: dict[str, Any]) -> dict[str, Any]:
    kept = {k: v for k, v in settings.items() if k not in ("mrope_section", "mrope_interleaved")}
    return {k: "default" if k in ("type", "rope_type") and v == "mrope" else v for k, v in kept.items()}


def _within(kind: str) -> Architecture:
    from rlx.models.language.architectures import ARCHITECTURES  # That table has this module's too.

    return ARCHITECTURES[kind]


def read(f: Fields) -> LanguageConfig:
    """The blocks of the text model."""
    text = text_fields(f)
    config = _within(text.content["model_type"]).read(text)
    return replace(config, tied_by_file=config.tied and not outer_tied(f))


def find(name: str, config: LanguageConfig, tensors: Mapping[str, Any]) -> Recipe:
    """As the text model alone has its weights."""
    from rlx.models.language.architectures import ARCHITECTURES

    kind = f"{config.architecture}_text"
    return _within(kind if kind in ARCHITECTURES else config.architecture).find(name, config, tensors)


_PREFIXES = ("model.language_model.", "language_model.model.", "model.text_model.", "model.")
_USUAL = Architecture(read, find, _PREFIXES, aside=ASIDE)
ARCHITECTURES = {
    kind: replace(_USUAL, prefixes=("model.text_model.", *_PREFIXES)) if kind in ("idefics3", "smolvlm") else _USUAL
    for kind in _TEXTS
}
