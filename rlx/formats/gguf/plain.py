"""Architectures of GGUF whose tensors are read by the names of rlx's graphs, whatever a folder of theirs calls them.

`rlx.models.language.written` writes such files; the numbers are those of the graph's weights, but for what `Family`
names: q, k and v in one tensor, rows of q and k in pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlx.formats.gguf.keys import EVERY, FOLLOWED, NO_NUMBER, Rule
from rlx.formats.gguf.names import COUNTS, Change, Family

_TOP = {"embed_tokens": "token_embd", "embed_norm": "token_embd_norm", "positions": "position_embd",
        "norm": "output_norm", "lm_head": "output"}  # fmt: skip
_BLOCK = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.gate.correction": "exp_probs_b.bias", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_keys": "attn_k_b", "self_attn.kv_b_values": "attn_v_b",
}  # fmt: skip
_AFTER = {**_BLOCK, "post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_AROUND = {**_AFTER, "pre_feedforward_layernorm": "ffn_norm"}
_SECOND = {**_BLOCK, "post_attention_layernorm": "post_attention_norm"}
_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_THETA = {"rope_theta": "rope.freq_base"}
_USED = {"num_experts_per_tok": "expert_used_count"}
_WINDOW = {"sliding_window": "attention.sliding_window"}
_BIAS = {"attention_bias": "blk.0.attn_q.bias"}
_GRANITE = {"embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_scale", "attention_multiplier": "attention.scale"}  # fmt: skip
_ROUTED = {
    "n_routed_experts": "expert_count", **_USED, "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count", "first_k_dense_replace": "leading_dense_block_count",
}  # fmt: skip
_GROUPS = {"n_group": "expert_group_count", "topk_group": "expert_group_used_count"}
_CHOICE: dict[str, Any] = {"routed_scaling_factor": "expert_weights_scale", "norm_topk_prob": "expert_weights_norm"}
_LATENT = {**_ROUTED, "kv_lora_rank": "attention.kv_lora_rank", "qk_rope_head_dim": "rope.dimension_count",
           "qk_head_dim": "attention.key_length_mla", "v_head_dim": "attention.value_length_mla"}  # fmt: skip
_LATENT_MORE = {"q_lora_rank": "attention.q_lora_rank", "yarn_log_multiplier": "rope.scaling.yarn_log_multiplier"}
_F32_1E_5 = 9.999999747378752e-06
_SIGMOID = {"expert_gating_func": 2}
_ONE_ROW: dict[str, Change] = {"ffn_gate_inp_shexp.weight": "one row"}


def _family(
    architecture: str, model_type: str, eps: tuple[str, str] | None = ("rms_norm_eps", _RMS), **more: Any
) -> Family:
    own = {} if eps is None else {eps[0]: eps[1]}
    rope = {} if more.pop("no_rope", False) else _THETA
    settings: dict[str, Any] = {
        "block": _BLOCK, "top": _TOP, "layers": "layers", "numbers": {**own, **rope}, "stacked": True,
        "plain": True, **more,
    }  # fmt: skip
    settings["counts"] = {**COUNTS, **settings.pop("more_counts", {})}
    return Family(architecture, model_type, **settings)


FAMILIES = (
    _family("llama", "mixtral", more_counts={"num_local_experts": "expert_count", **_USED}, pairs=True),
    _family("gemma", "gemma", fixed={"hidden_act": "gelu_pytorch_tanh"}),
    _family(
        "qwen2moe", "qwen2_moe", changes=_ONE_ROW, present={"qkv_bias": "blk.0.attn_q.bias"},
        more_counts={"num_experts": "expert_count", **_USED, "moe_intermediate_size": "expert_feed_forward_length",
                     "shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
    ),
    _family("granite", "granite", optional=_GRANITE, present={**_BIAS, "mlp_bias": "blk.0.ffn_up.bias"}, pairs=True),
    _family(
        "granitemoe", "granitemoe", optional=_GRANITE, present=_BIAS, pairs=True,
        more_counts={"num_local_experts": "expert_count", **_USED},
    ),
    _family("smollm3", "smollm3", fixed={"no_rope_layer_interval": 4}, present=_BIAS, pairs=True),
    _family("arcee", "arcee", fixed={"hidden_act": "relu2"}, present=_BIAS, pairs=True),
    _family(
        "starcoder2", "starcoder2", ("norm_epsilon", _LAYER),
        fixed={"hidden_act": "gelu_pytorch_tanh", "use_bias": True},
    ),
    _family(
        "gptneox", "gpt_neox", ("layer_norm_eps", _LAYER), joined=True,
        fixed={"hidden_act": "gelu", "attention_bias": True},
        optional={"use_parallel_residual": "use_parallel_residual"},
    ),
    _family(
        "starcoder", "gpt_bigcode", ("layer_norm_epsilon", _LAYER), joined=True, no_rope=True,
        fixed={"activation_function": "gelu_pytorch_tanh"}, one_key="multi_query",
    ),
    _family("bloom", "bloom", ("layer_norm_epsilon", _LAYER), joined=True, no_rope=True),
    _family(
        "phi2", "phi", ("layer_norm_eps", _LAYER), block={**_BLOCK}, fixed={"hidden_act": "gelu_new"}, joined=True
    ),
    _family(
        "stablelm", "stablelm", ("layer_norm_eps", _LAYER), present={"use_qkv_bias": "blk.0.attn_q.bias",
                                                                     "qk_layernorm": "blk.0.attn_q_norm.weight"},
        optional={"use_parallel_residual": "use_parallel_residual"},
    ),
    _family("nemotron", "nemotron", ("norm_eps", _LAYER), fixed={"hidden_act": "relu2"}, present={
        **_BIAS, "mlp_bias": "blk.0.ffn_up.bias"}),
    _family(
        "command-r", "cohere", ("layer_norm_eps", _LAYER), optional={"logit_scale": "logit_scale"}, present={
            "use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    _family(
        "cohere2", "cohere2", ("layer_norm_eps", _LAYER), optional={"logit_scale": "logit_scale", **_WINDOW},
    ),
    _family(
        "olmo", "olmo", None, optional={"clip_qkv": "attention.clamp_kqv"}, pairs=True, says={_LAYER: _F32_1E_5},
    ),
    _family(
        "olmoe", "olmoe", more_counts={"num_experts": "expert_count", **_USED}, fixed={"norm_topk_prob": False},
    ),
    _family("seed_oss", "seed_oss", block=_SECOND, present=_BIAS),
    _family("ernie4_5", "ernie4_5"),
    _family("hunyuan-dense", "hunyuan_v1_dense"),
    _family(
        "mpt", "mpt", ("layer_norm_epsilon", _LAYER), joined=True, no_rope=True, says={"attention.max_alibi_bias": 8.0},
        optional={"clip_qkv": "attention.clamp_kqv"},
    ),
    _family(
        "falcon", "falcon", ("layer_norm_epsilon", _LAYER), joined=True, fixed={"activation": "gelu"},
        block={**_BLOCK, "ln_attn": "attn_norm_2"},
    ),
    _family(
        "deepseek2", "deepseek_v2", more_counts=_LATENT, optional={**_LATENT_MORE, **_CHOICE}, latent=True,
        fixed={"topk_method": "greedy"}, says={"expert_gating_func": 1},
    ),
    _family(
        "deepseek2", "deepseek_v3", more_counts=_LATENT, optional={**_LATENT_MORE, **_CHOICE, **_GROUPS}, latent=True,
        fixed={"rope_interleave": True}, says=_SIGMOID,
    ),
    _family("exaone4", "exaone4", block=_AFTER, optional=_WINDOW),
    _family("glm4", "glm4", block=_AROUND, present=_BIAS, gates_above=True),
    _family(
        "glm4moe", "glm4_moe", block=_SECOND, more_counts=_ROUTED, optional={**_CHOICE, **_GROUPS}, says=_SIGMOID,
        present={**_BIAS, "use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    _family("dots1", "dots1", more_counts=_ROUTED, optional={**_CHOICE, **_GROUPS}, says=_SIGMOID, present=_BIAS),
)  # fmt: skip
BY_ARCHITECTURE = {family.architecture: family for family in reversed(FAMILIES)}
BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES}
# Settings that no reader follows, or that say what the tensors do.
_IDLE = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned")


def rules(family: Family) -> dict[str, Rule]:
    """What rlx does about each setting of a file of the family; any other is refused."""
    own = (*family.counts.values(), *family.numbers.values(), *family.optional.values())
    said: dict[str, Rule] = {key: (value,) for key, value in family.says.items()}
    one = {"expert_group_count": (0, 1)}
    return {**EVERY, **one, **dict.fromkeys(own, FOLLOWED), **dict.fromkeys(_IDLE, NO_NUMBER), **said}


def family_of(architecture: str, metadata: Mapping[str, Any]) -> Family | None:
    """The family of a file; Mixtral's are Llamas with experts, and sigmoids tell DeepSeek-V3's from V2's."""
    experts = metadata.get("llama.expert_count") and "llama.expert_used_count" in metadata
    if architecture == "llama" and not experts:
        return None
    if architecture == "deepseek2" and metadata.get("deepseek2.expert_gating_func") == 2:
        return BY_MODEL_TYPE["deepseek_v3"]
    return BY_ARCHITECTURE.get(architecture)
