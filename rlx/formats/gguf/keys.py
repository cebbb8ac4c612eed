"""The settings that llama.cpp reads of each architecture that rlx reads, and what rlx does about each.

`python -m tests.formats.gguf.settings_sweep` finds which settings these are and what they change, and a test compares
its table with this one. A setting that llama.cpp does not read of an architecture is left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.formats.files import shown

LLAMA_CPP = "v0.5.0"
# A rule for a setting: rlx follows it (FOLLOWED); it changes no result (NO_NUMBER); it must have one of some values,
# with which it changes nothing (a tuple); or it must equal another setting, by its name in config.json (a str; "turned"
# is the number of a head's elements that RoPE rotates).
Rule = tuple[bool | float | str, ...] | str
FOLLOWED, NO_NUMBER = "followed", "no number"

_NO_EXPERTS: dict[str, Rule] = {"expert_count": (0,), "expert_used_count": (0,)}
_EXPERTS: dict[str, Rule] = dict.fromkeys(("expert_count", "expert_used_count", "expert_feed_forward_length"), FOLLOWED)
EVERY: dict[str, Rule] = {
    **dict.fromkeys((
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", "attention.key_length", "attention.value_length", "pooling_type", "rope.freq_base",
        "rope.dimension_count", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
        "rope.scaling.original_context_length",
    ), FOLLOWED),
    **dict.fromkeys((
        "embedding_length_out", "expert_group_used_count", "rope.scaling.alpha", "rope.scaling.finetuned",
        "attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa",
    ), NO_NUMBER),
    "attention.causal": (True,), "rope.scaling.attn_factor": (1.0,), "nextn_predict_layers": (0,),
    "expert_group_count": (0,), **_NO_EXPERTS,
}  # fmt: skip
_RMS: dict[str, Rule] = {"attention.layer_norm_rms_epsilon": FOLLOWED}
_NORM: dict[str, Rule] = {"attention.layer_norm_epsilon": FOLLOWED}
# GGUF allows other head sizes and RoPE bases in layers with a window; rlx has code only for equal ones, unless a
# family's rules say otherwise.
_WINDOWS: dict[str, Rule] = {
    "attention.sliding_window": FOLLOWED, "attention.sliding_window_pattern": FOLLOWED,
    "attention.key_length_swa": "head_dim", "attention.value_length_swa": "head_dim",
    "rope.dimension_count_swa": "turned", "rope.freq_base_swa": "rope_theta",
}  # fmt: skip
_CAP: dict[str, Rule] = {"final_logit_softcapping": FOLLOWED}
_DELTA: dict[str, Rule] = {
    **dict.fromkeys((
        "ssm.conv_kernel", "ssm.group_count", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank",
        "full_attention_interval",
    ), FOLLOWED),
    "rope.dimension_sections": FOLLOWED,
    "attention.recurrent_layers": (),
}  # fmt: skip
_HEADS = ("attention.key_length", "attention.value_length", "rope.dimension_count")  # read only if the model has heads
_MAMBA: dict[str, Rule] = {
    **dict.fromkeys(("ssm.conv_kernel", "ssm.inner_size", "ssm.state_size", "ssm.time_step_rank"), FOLLOWED),
    **dict.fromkeys((
        "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.attn_factor",
        "rope.scaling.original_context_length",
    ), NO_NUMBER),
    "ssm.dt_b_c_rms": (False,),
}  # fmt: skip
_ENCODER: dict[str, Rule] = {"attention.causal": (False,)}
_NO_ROPE: dict[str, Rule] = {key: NO_NUMBER for key in EVERY if key.startswith("rope.")}
READ: dict[str, dict[str, Rule]] = {
    "llama": {**EVERY, **_RMS, "vocab_size": NO_NUMBER},
    "qwen2": {**EVERY, **_RMS},
    "qwen3": {**EVERY, **_RMS},
    "qwen3moe": {**EVERY, **_RMS, **_EXPERTS},
    "qwen35": {**EVERY, **_RMS, **_DELTA},
    "qwen35moe": {**EVERY, **_RMS, **_DELTA, **_EXPERTS, "expert_shared_feed_forward_length": FOLLOWED},
    "gemma2": {**EVERY, **_RMS, **_WINDOWS, **_CAP, "attn_logit_softcapping": FOLLOWED},
    "gemma3": {**EVERY, **_RMS, **_WINDOWS, **_CAP, "rope.freq_base_swa": FOLLOWED},
    "phi3": {**EVERY, **_RMS, "attention.sliding_window": FOLLOWED},
    "olmo2": {**EVERY, **_RMS, "attention.sliding_window": (0,)},
    "gpt-oss": {**EVERY, **_RMS, **_WINDOWS, **_EXPERTS},
    "gpt2": {**EVERY, **_NORM, **_NO_ROPE},
    "mamba": {k: rule for k, rule in {**EVERY, **_RMS, **_MAMBA}.items() if k not in _HEADS},
    "bert": {**EVERY, **_NORM, **_ENCODER, **_NO_ROPE},
    "nomic-bert": {**EVERY, **_NORM, **_ENCODER, "rope.scaling.factor": (0.0, 1.0), "rope.scale_linear": (0.0, 1.0)},
    "jina-bert-v2": {**EVERY, **_NORM, **_ENCODER, **_NO_ROPE},
}


def unfollowed(
    arch: str, metadata: Mapping[str, Any], config: Mapping[str, Any], rules: Mapping[str, Rule]
) -> str | None:
    """An error message for the first setting that changes results and that rlx has no code for; None if there is none.
    `config` has the settings that rules name."""
    for key, rule in rules.items():
        value = metadata.get(f"{arch}.{key}")
        if value is None or rule in (FOLLOWED, NO_NUMBER):
            continue
        allowed = (config.get(rule),) if isinstance(rule, str) else rule
        if not any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in allowed):
            other = f" other than {' and '.join(map(str, allowed))}" if allowed else ""
            return f"{arch}.{key} is {shown(value)}; rlx has no code for{other or ' it'}"
    return None
