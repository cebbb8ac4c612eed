"""GGUF architectures whose tensors are read by the names in rlx's graphs, not by those in their Hugging Face folders.

`rlx.models.language.written` writes such files. Values are those of the graph's weights, except where `Family` says so:
q, k and v joined in one tensor, rows of q and k reordered for RoPE on adjacent pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
_SSM = {
    **_BLOCK, **{f"mixer.{part}": f"ssm_{theirs}" for part, theirs in {
        "in_proj": "in", "conv1d": "conv1d", "x_proj": "x", "dt_proj": "dt", "dt_bias": "dt.bias", "A": "a", "D": "d",
        "norm": "norm", "out_proj": "out", "dt_layernorm": "dt_norm", "b_layernorm": "b_norm", "c_layernorm": "c_norm",
    }.items()},
}  # fmt: skip
_FALCON_H1 = {("post_attention_layernorm.weight" if name == "post_attention_layernorm" else name): place
              for name, place in _SSM.items()}  # the name of a norm in its files has no suffix
_LFM2 = {**{k: v for k, v in _TOP.items() if k != "embed_norm"}, "norm": "token_embd_norm"}
_CONV = {**_BLOCK, **{f"conv.{part}": f"shortconv.{theirs}" for part, theirs in {
    "in_proj": "in_proj", "conv1d": "conv", "out_proj": "out_proj"}.items()}}  # fmt: skip
_AFTER = {**_BLOCK, "post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
_AROUND = {**_AFTER, "pre_feedforward_layernorm": "ffn_norm"}
_SECOND = {**_BLOCK, "post_attention_layernorm": "post_attention_norm"}
_INPUTS = {"per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"}
_GEMMA_4 = {
    **_AROUND, **_INPUTS, "layer_scalar": "layer_output_scale.weight", "mlp.gate.scale": "ffn_gate_inp.scale",
    "mlp.gate.expert_scale": "ffn_down_exps.scale", "mlp.experts.gate_up_proj": "ffn_gate_up_exps",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
}  # fmt: skip
_GEMMA_3N = {
    **_AROUND, **_INPUTS,
    "altup.correction_coefs": "altup_correct_coef", "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router", "altup.router_norm": "altup_router_norm",
    "altup.correct_output_scale": "altup_correct_scale.weight", "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r", "laurel.post_laurel_norm": "laurel_post_norm",
}  # fmt: skip
_LAYERED_TOP = {
    **_TOP, "embed_tokens_per_layer": "per_layer_token_embd", "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
_RMS, _LAYER = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"
_THETA = {"rope_theta": "rope.freq_base"}
_USED = {"num_experts_per_tok": "expert_used_count"}
_WINDOW = {"sliding_window": "attention.sliding_window"}
_ALONE = {"mlp": "ffn_up.weight", "moe": "ffn_gate_inp.weight"}
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
_SHARED_INNER = {"shared_intermediate_size": "expert_shared_feed_forward_length"}
_LOCAL = {"num_local_experts": "expert_count", **_USED}
_HEADS_OF_STATES: dict[str, Change] = dict.fromkeys(("ssm_a", "ssm_d", "ssm_norm.weight"), "flat")
_STATES = {"mamba_d_conv": "ssm.conv_kernel", "mamba_d_state": "ssm.state_size"}
_MAMBA2 = {**_STATES, "mamba_n_heads": "ssm.time_step_rank", "mamba_n_groups": "ssm.group_count"}
_INNER = {"ssm_inner": "ssm.inner_size"}
_CONV_BIAS = {"mamba_conv_bias": "blk.0.ssm_conv1d.bias"}
_SHORT = {"conv_L_cache": "shortconv.l_cache"}
_LAYERED = {"hidden_size_per_layer_input": "embedding_length_per_layer_input", **_WINDOW}
_KIMI = {
    **_BLOCK, **{f"self_attn.{part}_conv1d": f"ssm_conv1d_{part}" for part in "qkv"},
    **{f"self_attn.{part}": f"ssm_{theirs}" for part, theirs in {
        "forget_gate.f_a_proj": "f_a", "forget_gate.f_b_proj": "f_b", "forget_gate.dt_bias": "dt.bias",
        "forget_gate.A": "a", "b_proj": "beta", "g_a_proj": "g_a", "g_b_proj": "g_b", "o_norm": "norm",
    }.items()},
}  # fmt: skip
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
    settings.setdefault("counts", {**COUNTS, **settings.pop("more_counts", {})})
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
    _family("granitemoe", "granitemoe", optional=_GRANITE, present=_BIAS, pairs=True, more_counts=_LOCAL),
    _family(
        "granitemoe", "granitemoeshared", optional=_GRANITE, present=_BIAS, pairs=True,
        more_counts={**_LOCAL, **_SHARED_INNER},
    ),
    *(
        _family(
            "granitehybrid", kind, optional={**_GRANITE, **_LOCAL, **_SHARED_INNER}, pairs=True, block=_SSM,
            more_counts={**_MAMBA2, **_INNER}, present={**_BIAS, **_CONV_BIAS}, mixers="linear_attention",
            changes=_HEADS_OF_STATES,
        )
        for kind in ("granitemoehybrid", "bamba")
    ),
    _family(
        "falcon-h1", "falcon_h1", block=_FALCON_H1, folded=True,
        more_counts={**_MAMBA2, "mamba_d_ssm": "ssm.inner_size"},
        present={**_CONV_BIAS, "mamba_rms_norm": "blk.0.ssm_norm.weight"}, fixed={"mamba_norm_before_gate": False},
        changes=_HEADS_OF_STATES,
    ),
    _family(
        "jamba", "jamba", block={k: v for k, v in _SSM.items() if k != "mixer.dt_bias"}, no_rope=True,
        mixers="jamba", present=_CONV_BIAS,
        more_counts={
            **_STATES, **_INNER, "mamba_dt_rank": "ssm.time_step_rank", "num_experts": "expert_count", **_USED},
    ),
    _family(
        "mamba2", "mamba2", ("layer_norm_epsilon", _RMS), block={**_SSM, "input_layernorm": "attn_norm"}, no_rope=True,
        counts={"num_hidden_layers": "block_count", "hidden_size": "embedding_length", "conv_kernel": "ssm.conv_kernel",
                "state_size": "ssm.state_size", "num_heads": "ssm.time_step_rank", "n_groups": "ssm.group_count",
                **_INNER}, changes=_HEADS_OF_STATES, present={"use_conv_bias": "blk.0.ssm_conv1d.bias"},
    ),
    _family(
        "lfm2", "lfm2", ("norm_eps", _RMS), block=_CONV, top=_LFM2, more_counts=_SHORT,
        mixers="conv", fixed={"block_auto_adjust_ff_dim": False, "conv_bias": False},
    ),
    _family(
        "lfm2moe", "lfm2_moe", ("norm_eps", _RMS), block=_CONV, top=_LFM2, mixers="conv",
        fixed={"conv_bias": False}, says=_SIGMOID, more_counts={
            **_SHORT, "num_experts": "expert_count", **_USED, "num_dense_layers": "leading_dense_block_count",
            "moe_intermediate_size": "expert_feed_forward_length"},
    ),
    _family(
        "apertus", "apertus", present=_BIAS, listed={f"mlp.act_fn.{part}": f"xielu.{part}" for part in (
            "alpha_p", "alpha_n", "beta", "eps")},
    ),
    _family(
        "phimoe", "phimoe", present={**_BIAS, "lm_head_bias": "output.bias"}, more_counts=_LOCAL,
    ),
    _family(
        "minimax-m2", "minimax_m2", says=_SIGMOID,
        more_counts={**_LOCAL, "intermediate_size": "expert_feed_forward_length"},
    ),
    _family(
        "ernie4_5-moe", "ernie4_5_moe", more_counts={
            "moe_num_experts": "expert_count", "moe_k": "expert_used_count",
            "moe_intermediate_size": "expert_feed_forward_length", "moe_layer_interval": "interleave_moe_layer_step",
            "moe_layer_start_index": "leading_dense_block_count"},
        optional={"moe_num_shared_experts": "expert_shared_count"},
    ),
    _family(
        "hunyuan-moe", "hunyuan_v1_moe", present=_BIAS, more_counts={
            "num_experts": "expert_count", "moe_topk": "expert_used_count",
            "intermediate_size": "expert_feed_forward_length"},
    ),
    *(
        _family(
            architecture, "nemotron_h", ("layer_norm_epsilon", _RMS), no_rope=True, mixers="nemotron_h",
            block={k: v for k, v in _SSM.items() if k != "post_attention_layernorm"}, changes=_HEADS_OF_STATES,
            more_counts={"conv_kernel": "ssm.conv_kernel", "ssm_state_size": "ssm.state_size", **_INNER,
                         "mamba_num_heads": "ssm.time_step_rank", "n_groups": "ssm.group_count", **more},
            present={**_BIAS, "use_conv_bias": "blk.0.ssm_conv1d.bias"}, fixed={"mlp_hidden_act": "relu2"},
            optional={**_CHOICE, **_GROUPS} if more else {},
        )
        for architecture, more in (
            ("nemotron_h_moe", {
                "n_routed_experts": "expert_count", **_USED, "moe_intermediate_size": "expert_feed_forward_length",
                "moe_shared_expert_intermediate_size": "expert_shared_feed_forward_length"}),
            ("nemotron_h", {}),
        )
    ),
    _family(
        "bitnet", "bitnet", block={**_BLOCK, "self_attn.out_norm": "attn_sub_norm", "mlp.norm": "ffn_sub_norm"},
        fixed={"hidden_act": "silu", "tie_word_embeddings": True},
    ),
    _family(
        "dbrx", "dbrx", None, block={**_BLOCK, "post_attention_layernorm": "attn_output_norm"}, joined=True,
        more_counts={"moe_num_experts": "expert_count", "moe_top_k": "expert_used_count"},
        says={_LAYER: _F32_1E_5}, optional={"clip_qkv": "attention.clamp_kqv"},
    ),
    _family(
        "afmoe", "afmoe", block={**_AROUND, "self_attn.q_gate": "attn_gate"}, says=_SIGMOID,
        optional={**_WINDOW, "route_scale": "expert_weights_scale"}, more_counts={
            "num_experts": "expert_count", **_USED, "moe_intermediate_size": "expert_feed_forward_length",
            "num_shared_experts": "expert_shared_count", "num_dense_layers": "leading_dense_block_count"},
        fixed={"mup_enabled": True},
    ),
    _family(
        "exaone-moe", "exaone_moe", says=_SIGMOID, optional={**_WINDOW, **_GROUPS, **_CHOICE}, more_counts={
            "num_experts": "expert_count", **_USED, "moe_intermediate_size": "expert_feed_forward_length",
            "num_shared_experts": "expert_shared_count", "first_k_dense_replace": "leading_dense_block_count"},
    ),
    _family("jais2", "jais2", ("layer_norm_eps", _LAYER), fixed={"hidden_act": "relu2"}),
    _family("chatglm", "glm", present=_BIAS, gates_above=True),
    _family("olmo2", "olmo3", block=_AFTER, optional=_WINDOW, present=_BIAS),
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
    _family(
        "deepseek2", "glm4_moe_lite", more_counts=_LATENT, optional={**_LATENT_MORE, **_CHOICE, **_GROUPS}, latent=True,
        fixed={"rope_interleave": True}, says=_SIGMOID,
    ),
    _family(
        "kimi-linear", "kimi_linear", block=_KIMI, latent=True, no_rope=True, mixers="kda", says=_SIGMOID,
        changes={"ssm_a": "flat"}, optional=_CHOICE,
        more_counts={**{"num_local_experts" if k == "n_routed_experts" else k: v for k, v in _LATENT.items()},
                     "linear_head_dim": "kda.head_dim", "linear_conv_kernel_dim": "ssm.conv_kernel"},
    ),
    _family("exaone4", "exaone4", block=_AFTER, optional=_WINDOW),
    _family("glm4", "glm4", block=_AROUND, present=_BIAS, gates_above=True),
    _family(
        "glm4moe", "glm4_moe", block=_SECOND, more_counts=_ROUTED, optional={**_CHOICE, **_GROUPS}, says=_SIGMOID,
        present={**_BIAS, "use_qk_norm": "blk.0.attn_q_norm.weight"},
    ),
    _family(
        "gemma4", "gemma4_text", block=_GEMMA_4, top=_LAYERED_TOP, layered=True, optional=_LAYERED,
        fixed={"hidden_activation": "gelu_pytorch_tanh"},
    ),
    _family(
        "gemma3n", "gemma3n_text", block=_GEMMA_3N, top=_LAYERED_TOP, layered=True, optional=_LAYERED,
        stacks={"altup_proj": "altup_projections", "altup_unembd_proj": "altup_unembed_projections"},
        fixed={"hidden_activation": "gelu_pytorch_tanh", "altup_num_inputs": 4, "altup_active_idx": 0,
               "altup_correct_scale": True, "laurel_rank": 64},
        says={"altup.num_inputs": 4, "altup.active_idx": 0},
    ),
    _family("dots1", "dots1", more_counts=_ROUTED, optional={**_CHOICE, **_GROUPS}, says=_SIGMOID, present=_BIAS),
)  # fmt: skip
BY_ARCHITECTURE = {family.architecture: family for family in reversed(FAMILIES)}
BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES}
# Settings that no reader follows, or that repeat what the tensors show.
_IDLE = ("vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "expert_feed_forward_length",
         "expert_shared_feed_forward_length", "expert_shared_count")  # fmt: skip
_BY_LAYER: dict[str, Rule] = {
    **dict.fromkeys(("attention.sliding_window_pattern", "attention.shared_kv_layers", "rope.freq_base_swa",
                     "final_logit_softcapping"), FOLLOWED),
    "rope.scaling.type": ("none", "linear"), "rope.scaling.factor": (0.0, 1.0), "rope.scale_linear": (0.0, 1.0),
}  # fmt: skip
_OF_GEMMA_3N: dict[str, Rule] = {
    "activation_sparsity_scale": FOLLOWED,
    "attention.key_length_swa": "head_dim", "attention.value_length_swa": "head_dim",
    "rope.dimension_count_swa": "turned",
}  # fmt: skip
_OF_GEMMA_4: dict[str, Rule] = dict.fromkeys(
    ("attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa", "expert_count",
     "expert_used_count", "expert_feed_forward_length"), FOLLOWED,
)  # fmt: skip


def rules(family: Family) -> dict[str, Rule]:
    """What rlx does about each setting of a file of the family; any other is refused."""
    own = (*family.counts.values(), *family.numbers.values(), *family.optional.values())
    said: dict[str, Rule] = {key: (value,) for key, value in family.says.items()}
    one: dict[str, Rule] = {"expert_group_count": (0, 1)}
    if family.architecture.startswith("granite"):  # whether there is RoPE, which Granite's hybrids may lack
        one["rope.scaling.finetuned"] = FOLLOWED if family.mixers else (True,)
    if family.mixers == "nemotron_h":
        one[_LAYER] = NO_NUMBER
    if family.layered:
        one |= {**_BY_LAYER, **(_OF_GEMMA_3N if family.stacks else _OF_GEMMA_4)}
    return {**EVERY, **dict.fromkeys(_IDLE, NO_NUMBER), **one, **dict.fromkeys(own, FOLLOWED), **said}


def family_of(architecture: str, metadata: Mapping[str, Any]) -> Family | None:
    """The family of a file. A Llama with experts is a Mixtral, an OLMo 2 with windows is an OLMo 3, and a DeepSeek-V2
    with sigmoids is a V3."""
    experts = metadata.get("llama.expert_count") and "llama.expert_used_count" in metadata
    if architecture == "llama" and not experts:
        return None
    if architecture == "olmo2":
        return BY_MODEL_TYPE["olmo3"] if metadata.get("olmo2.attention.sliding_window") else None
    if architecture == "granitemoe" and metadata.get("granitemoe.expert_shared_feed_forward_length"):
        return BY_MODEL_TYPE["granitemoeshared"]
    if architecture == "deepseek2" and metadata.get("deepseek2.expert_gating_func") == 2:
        return BY_MODEL_TYPE["deepseek_v3"]
    return BY_ARCHITECTURE.get(architecture)


def hybrid(family: Family, config: dict[str, Any], heads: list[int], tensors: Mapping[str, Any]) -> str | None:
    """Sets a hybrid's settings for which layers have attention: those whose number of KV heads in `heads` is not 0.
    Returns: an error message, or None."""
    layers, width = len(heads), config["hidden_size"]
    if family.mixers == "nemotron_h":
        inner, states = config.pop("ssm_inner"), config["mamba_num_heads"]
        if states < 1 or inner % states:
            return f"ssm.inner_size is {inner}, expected a multiple of the {states} heads"
        config["mamba_head_dim"] = inner // states
        config["layers_block_type"] = [
            "attention" if n else next((k for k, end in _ALONE.items() if f"blk.{i}.{end}" in tensors), "mamba")
            for i, n in enumerate(heads)
        ]
        if "mlp" in config["layers_block_type"]:
            first = tensors[f"blk.{config['layers_block_type'].index('mlp')}.ffn_up.weight"]
            config["intermediate_size"] = first.shape[0]
        return None
    if family.mixers == "kda":
        config["layer_types"] = ["full_attention" if n else "linear_attention" for n in heads]
        config["linear_num_heads"] = config["num_attention_heads"]
        return None
    inner = config.pop("ssm_inner", 2 * width)
    if inner % width:
        return f"ssm.inner_size is {inner}, expected a multiple of the width {width}"
    if family.mixers == "conv":
        config["layer_types"] = ["full_attention" if n else "conv" for n in heads]
        return None
    config["mamba_expand"] = inner // width
    if family.mixers == "jamba":
        mixed = [int(f"blk.{i}.ffn_gate_inp.weight" in tensors) for i in range(layers)]
        for name, flags in (("attn", heads), ("expert", mixed)):
            every = _regular(flags)
            if every is None:
                return f"layers with {name} are {flags}, expected each so-many-th"
            config |= {f"{name}_layer_period": every[0], f"{name}_layer_offset": every[1]}
        return None
    config["layer_types"] = ["full_attention" if n else family.mixers for n in heads]
    config["position_embedding_type"] = "rope" if config.pop("rope.scaling.finetuned", True) else "nope"
    if not config.setdefault("num_local_experts", 0):
        config["shared_intermediate_size"] = config["intermediate_size"]
    return None


def _regular(flags: Sequence[int]) -> tuple[int, int] | None:
    """The period and the offset of the flags that are set; None if they are not periodic."""
    for period in range(1, len(flags) + 2):
        for offset in range(min(period, len(flags) + 1)):
            if all(bool(flag) == (i % period == offset) for i, flag in enumerate(flags)):
                return period, offset
    return None
