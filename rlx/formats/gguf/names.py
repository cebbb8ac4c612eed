"""How GGUF and Hugging Face folders name the tensors and the settings of the same model.

Names of tensors: `model.layers.3.self_attn.q_proj.weight` is `blk.3.attn_q.weight`. Settings: `hidden_size` is
`llama.embedding_length`. Some tensors also hold other numbers (`Change`): where llama.cpp rotates neighbouring pairs of
a head, rows of q and k stand in another order; Gemma's norms have 1 added.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from rlx.records import Record, field

Change = Literal["pairs of q", "pairs of k", "one more", "transposed", "minus exp", "squeezed", "one row", "flat"]

_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_TIED = {"model.embed_tokens": "token_embd", "model.norm": "output_norm"}
_ATTENTION = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}  # fmt: skip
_QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
_BEFORE = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_LLAMA = {**_ATTENTION, **_MLP, **_BEFORE}
_AROUND = {
    **_LLAMA, "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_AFTER = {
    **_ATTENTION, **_QK_NORMS, **_MLP, "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
_PHI3 = {
    "self_attn.qkv_proj": "attn_qkv", "self_attn.o_proj": "attn_output", "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
_GPT2 = {
    "ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "ln_2": "ffn_norm",
    "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down",
}  # fmt: skip
_MAMBA = {
    "norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.x_proj": "ssm_x",
    "mixer.dt_proj": "ssm_dt", "mixer.A_log": "ssm_a", "mixer.D": "ssm_d", "mixer.out_proj": "ssm_out",
}  # fmt: skip
_QWEN35 = {
    **_ATTENTION, **_QK_NORMS, **_MLP,
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "linear_attn.in_proj_qkv": "attn_qkv", "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.A_log": "ssm_a", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}  # fmt: skip
_SHARED = {
    "mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
}  # fmt: skip
_GPT_OSS = {
    **_ATTENTION, "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
    "mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks.weight", "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps", "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}

# Settings that most architectures share: config.json's name, GGUF's after the name of the architecture.
COUNTS = {
    "num_hidden_layers": "block_count", "max_position_embeddings": "context_length", "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length", "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
}  # fmt: skip
NUMBERS = {"rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base"}
_GEMMA2 = {
    "final_logit_softcapping": "final_logit_softcapping",
    "attn_logit_softcapping": "attn_logit_softcapping",
}
_WINDOW = {"sliding_window": "attention.sliding_window"}
_EXPERT_COUNTS = {
    "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}  # fmt: skip


class Family(Record):
    """An architecture: its names in both formats, its blocks' tensors, its settings, and the tensors that differ."""

    architecture: str  # GGUF's
    model_type: str  # config.json's
    block: Mapping[str, str]
    top: Mapping[str, str] = field(default_factory=lambda: _TOP)
    layers: str = "model.layers"
    counts: Mapping[str, str] = field(default_factory=lambda: COUNTS)
    numbers: Mapping[str, str] = field(default_factory=lambda: NUMBERS)
    optional: Mapping[str, str] = field(default_factory=dict)  # settings that a file may omit
    changes: Mapping[str, Change] = field(default_factory=dict)  # changes by the end of a tensor's name in GGUF
    class_name: str = "LlamaForCausalLM"
    stacked: bool = False  # experts keep the names of their stack; a folder of this kind cannot be written
    tiled: bool = False  # llama.cpp orders the heads in its own way; cannot be converted in either direction
    plain: bool = False  # tensors are read by the names of rlx's graphs (plain.py)
    fixed: Mapping[str, Any] = field(default_factory=dict)  # settings that GGUF leaves to its readers
    present: Mapping[str, str] = field(default_factory=dict)  # flags that are true if this tensor exists
    says: Mapping[str, Any] = field(default_factory=dict)  # settings of a file that must have this value
    pairs: bool = False  # RoPE rotates adjacent elements: rows of q and k are reordered from a folder's
    joined: bool = False  # q, k and v are one tensor
    gates_above: bool = False  # an MLP's gate and up projections are one tensor
    latent: bool = False  # multi-head latent attention
    listed: Mapping[str, str] = field(default_factory=dict)  # tensors of one number, by the setting that lists them
    mixers: str = ""  # the mixer of layers without attention
    folded: bool = False  # factors of products are multiplied into their weights
    one_key: str = ""  # the flag for a single KV head
    layered: bool = False  # settings that differ from layer to layer (plain.layered)
    # Tensors outside the layers that are stacks of a folder's numbered ones: the name in GGUF, and what these have
    # before their numbers.
    stacks: Mapping[str, str] = field(default_factory=dict)

    def gguf_name(self, name: str) -> str | None:
        """GGUF's name of a tensor; None if GGUF has none."""
        if name.startswith(f"{self.layers}."):
            number, _, rest = name.removeprefix(f"{self.layers}.").partition(".")
            stem, suffix = (rest, "") if rest in self.block else _parted(rest)
            ours = self.block.get(stem)
            return f"blk.{number}.{ours}{suffix}" if ours and number.isdecimal() else None
        stem, suffix = _parted(name)
        ours = self.top.get(stem)
        return f"{ours}{suffix}" if ours else None

    def folder_name(self, name: str) -> str | None:
        """The folder's name of a GGUF tensor; None if there is none."""
        match = _BLOCK.fullmatch(name)
        rest, table = (match[2], self.block) if match else (name, self.top)
        stem, suffix = (rest, "") if rest in table.values() else _parted(rest)
        theirs_of_stem = next((theirs for theirs, ours in table.items() if ours == stem), None)
        if theirs_of_stem is None:
            return None
        return f"{self.layers}.{match[1]}.{theirs_of_stem}{suffix}" if match else f"{theirs_of_stem}{suffix}"

    def change(self, name: str) -> Change | None:
        """How the values of this GGUF tensor differ from those in a folder."""
        return next((change for ending, change in self.changes.items() if name.endswith(ending)), None)


_BLOCK = re.compile(r"blk\.(\d{1,5})\.(.+)")


def _parted(name: str) -> tuple[str, str]:
    """A name split into its stem and its suffix, .weight or .bias."""
    for suffix in (".weight", ".bias"):
        if name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""


_PAIRS: dict[str, Change] = {
    "attn_q.weight": "pairs of q", "attn_q.bias": "pairs of q", "attn_k.weight": "pairs of k",
    "attn_k.bias": "pairs of k",
}  # fmt: skip
_ONE_MORE: dict[str, Change] = {"norm.weight": "one more"}
_TURNED: dict[str, Change] = dict.fromkeys(
    ("attn_qkv.weight", "attn_output.weight", "ffn_up.weight", "ffn_down.weight"), "transposed"
)
_STATES: dict[str, Change] = {"ssm_a": "minus exp", "ssm_conv1d.weight": "squeezed"}
_GPT2_COUNTS = {
    "n_layer": "block_count", "n_positions": "context_length", "n_embd": "embedding_length",
    "n_inner": "feed_forward_length", "n_head": "attention.head_count",
}  # fmt: skip
_MAMBA_COUNTS = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "conv_kernel": "ssm.conv_kernel",
    "intermediate_size": "ssm.inner_size", "state_size": "ssm.state_size", "time_step_rank": "ssm.time_step_rank",
}  # fmt: skip
_QWEN35_COUNTS = {
    **COUNTS, "linear_conv_kernel_dim": "ssm.conv_kernel", "linear_key_head_dim": "ssm.state_size",
    "linear_num_key_heads": "ssm.group_count", "linear_num_value_heads": "ssm.time_step_rank",
    "linear_inner_size": "ssm.inner_size",
}  # fmt: skip
_QWEN35_CHANGES: dict[str, Change] = {
    **_STATES, "attn_norm.weight": "one more", "post_attention_norm.weight": "one more",
    "attn_q_norm.weight": "one more", "attn_k_norm.weight": "one more", "output_norm.weight": "one more",
    "ffn_gate_inp_shexp.weight": "one row",
}  # fmt: skip
_QWEN35_MOE_COUNTS = {
    **{name: key for name, key in _QWEN35_COUNTS.items() if name != "intermediate_size"}, **_EXPERT_COUNTS,
    "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
}  # fmt: skip
FAMILIES = (
    Family("llama", "llama", _LLAMA, changes=_PAIRS),
    Family("llama", "mistral", _LLAMA, changes=_PAIRS, class_name="MistralForCausalLM"),
    Family("qwen2", "qwen2", _LLAMA, class_name="Qwen2ForCausalLM"),
    Family("qwen3", "qwen3", _LLAMA | _QK_NORMS, class_name="Qwen3ForCausalLM"),
    Family(
        "qwen3moe", "qwen3_moe", {**_ATTENTION, **_QK_NORMS, **_BEFORE, "mlp.gate": "ffn_gate_inp"},
        counts={**COUNTS, **_EXPERT_COUNTS}, class_name="Qwen3MoeForCausalLM",
    ),
    Family(
        "qwen35", "qwen3_5_text", _QWEN35, counts=_QWEN35_COUNTS, changes=_QWEN35_CHANGES,
        optional={"full_attention_interval": "full_attention_interval"}, class_name="Qwen3_5ForCausalLM", tiled=True,
    ),
    Family(
        "qwen35moe", "qwen3_5_moe_text", {k: v for k, v in _QWEN35.items() if k not in _MLP} | _SHARED,
        counts=_QWEN35_MOE_COUNTS, changes=_QWEN35_CHANGES,
        optional={"full_attention_interval": "full_attention_interval"}, class_name="Qwen3_5MoeForCausalLM", tiled=True,
    ),
    Family(
        "gemma2", "gemma2", _AROUND, top=_TIED, optional=_GEMMA2 | _WINDOW, changes=_ONE_MORE,
        class_name="Gemma2ForCausalLM",
    ),
    Family(
        "gemma3", "gemma3_text", _AROUND | _QK_NORMS, optional=_GEMMA2 | _WINDOW, changes=_ONE_MORE,
        class_name="Gemma3ForCausalLM",
    ),
    Family("phi3", "phi3", _PHI3, optional=_WINDOW, class_name="Phi3ForCausalLM"),
    Family("olmo2", "olmo2", _AFTER, class_name="Olmo2ForCausalLM"),
    Family(
        "gpt-oss", "gpt_oss", _GPT_OSS, optional=_WINDOW,
        counts={**COUNTS, "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
                "intermediate_size": "expert_feed_forward_length"},
        class_name="GptOssForCausalLM", stacked=True,
    ),
    Family(
        "gpt2", "gpt2", _GPT2,
        top={"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm", "lm_head": "output"}, layers="h",
        counts=_GPT2_COUNTS, numbers={"layer_norm_epsilon": "attention.layer_norm_epsilon"}, changes=_TURNED,
        class_name="GPT2LMHeadModel",
    ),
    Family(
        "mamba", "mamba", _MAMBA,
        top={"backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm", "lm_head": "output"},
        layers="backbone.layers", counts=_MAMBA_COUNTS,
        numbers={"layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}, changes=_STATES,
        class_name="MambaForCausalLM",
    ),
)  # fmt: skip
BY_ARCHITECTURE = {family.architecture: family for family in reversed(FAMILIES)}
BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES}
