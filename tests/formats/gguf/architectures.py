"""A tiny model of each architecture of GGUF that rlx reads, with weights that a formula gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.formats import gguf
from tests.models import gguf_encoders
from tests.models.tiny import formula

D, WIDE, HEADS, KV, SIZE, WORDS, LAYERS, EXPERTS, USED, INNER = 64, 96, 4, 2, 16, 32, 2, 4, 2, 32
ENCODERS = gguf_encoders.ARCHITECTURES
DECODERS = (
    "llama", "qwen2", "qwen3", "qwen3moe", "qwen35", "qwen35moe", "gemma2", "gemma3", "phi3", "olmo2", "gpt-oss",
    "gpt2", "mamba",
)  # fmt: skip
ARCHITECTURES = (*DECODERS, *ENCODERS)
IDS = [i * 7 % WORDS for i in range(40)]
CAT = [2, 5, 7, 15, 20, 5, 14, 10, 29, 3]  # the tokens that encoders are run on
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "t5",
    "tokenizer.ggml.tokens": ["<pad>", "</s>", "<unk>", *(f"x{i}" for i in range(3, WORDS))],
    "tokenizer.ggml.scores": [0.0] * WORDS, "tokenizer.ggml.token_type": [3, 3, 2, *[1] * (WORDS - 3)],
    "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.unknown_token_id": 2, "tokenizer.ggml.padding_token_id": 0,
}  # fmt: skip
_ATTENTION = {
    "block_count": LAYERS, "context_length": 256, "embedding_length": D, "feed_forward_length": WIDE,
    "attention.head_count": HEADS, "attention.head_count_kv": KV, "attention.key_length": SIZE,
    "attention.value_length": SIZE, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1000.0,
    "rope.dimension_count": SIZE, "vocab_size": WORDS,
}  # fmt: skip
_EXPERTS = {"expert_count": EXPERTS, "expert_used_count": USED, "expert_feed_forward_length": INNER}
_DELTA = {
    "full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.state_size": SIZE, "ssm.group_count": KV,
    "ssm.time_step_rank": HEADS, "ssm.inner_size": D, "rope.dimension_sections": [2, 1, 1, 0],
    "rope.dimension_count": SIZE // 2,
}  # fmt: skip
_MORE: dict[str, dict[str, Any]] = {
    "qwen3moe": _EXPERTS, "qwen35": _DELTA,
    "qwen35moe": {**_EXPERTS, **_DELTA, "expert_shared_feed_forward_length": INNER},
    "gemma2": {"attention.sliding_window": 8, "attn_logit_softcapping": 4.0, "final_logit_softcapping": 8.0},
    "gemma3": {"attention.sliding_window": 8, "attention.sliding_window_pattern": 2}, "phi3": {},
    "gpt-oss": {**_EXPERTS, "attention.sliding_window": 8},
}  # fmt: skip
_GPT2 = {
    "block_count": LAYERS, "context_length": 64, "embedding_length": D, "feed_forward_length": WIDE,
    "attention.head_count": HEADS, "attention.layer_norm_epsilon": 1e-5, "vocab_size": WORDS,
}  # fmt: skip
_MAMBA = {
    "block_count": LAYERS, "context_length": 256, "embedding_length": D, "feed_forward_length": 0,
    "attention.head_count": 0, "attention.layer_norm_rms_epsilon": 1e-5, "ssm.conv_kernel": 4, "ssm.inner_size": 2 * D,
    "ssm.state_size": 8, "ssm.time_step_rank": 4, "vocab_size": WORDS,
}  # fmt: skip


def settings(arch: str) -> dict[str, Any]:
    """The settings of the model, without the architecture's name before them."""
    return {"gpt2": _GPT2, "mamba": _MAMBA}.get(arch) or {**_ATTENTION, **_MORE.get(arch, {})}


def _linear(arch: str, layer: int) -> dict[str, tuple[int, ...]]:
    """The matrices of a layer."""
    attention = {"attn_q": (HEADS * SIZE, D), "attn_k": (KV * SIZE, D), "attn_v": (KV * SIZE, D)}
    attention["attn_output"] = (D, HEADS * SIZE)
    mlp = {"ffn_gate": (WIDE, D), "ffn_up": (WIDE, D), "ffn_down": (D, WIDE)}
    experts: dict[str, tuple[int, ...]] = {
        "ffn_gate_inp": (EXPERTS, D), "ffn_gate_exps": (EXPERTS, INNER, D), "ffn_up_exps": (EXPERTS, INNER, D),
        "ffn_down_exps": (EXPERTS, D, INNER),
    }  # fmt: skip
    shared = {"ffn_gate_shexp": (INNER, D), "ffn_up_shexp": (INNER, D), "ffn_down_shexp": (D, INNER)}
    if arch == "gpt2":
        return {"attn_qkv": (3 * D, D), "attn_output": (D, D), "ffn_up": (WIDE, D), "ffn_down": (D, WIDE)}
    if arch == "mamba":
        return {"ssm_in": (4 * D, D), "ssm_x": (20, 2 * D), "ssm_dt": (2 * D, 4), "ssm_out": (D, 2 * D)}
    if arch == "phi3":
        rows = (HEADS + 2 * KV) * SIZE
        return {"attn_qkv": (rows, D), "attn_output": (D, D), "ffn_up": (2 * WIDE, D), "ffn_down": (D, WIDE)}
    if arch.startswith("qwen35"):
        attention["attn_q"] = (2 * HEADS * SIZE, D)
        if layer % 2 == 0:
            attention = {"attn_qkv": (2 * KV * SIZE + D, D), "attn_gate": (D, D), "ssm_beta": (HEADS, D),
                         "ssm_alpha": (HEADS, D), "ssm_out": (D, D)}  # fmt: skip
        return {**attention, **(experts | shared if arch == "qwen35moe" else mlp)}
    return {**attention, **(experts if arch in ("qwen3moe", "gpt-oss") else mlp)}


def _vectors(arch: str, layer: int) -> dict[str, tuple[int, ...]]:
    """A layer's other tensors, by full names."""
    head = {"attn_q_norm.weight": (SIZE,), "attn_k_norm.weight": (SIZE,)}
    before: dict[str, tuple[int, ...]] = {"attn_norm.weight": (D,), "ffn_norm.weight": (D,)}
    after = {"post_attention_norm.weight": (D,), "post_ffw_norm.weight": (D,)}
    biases = {f"{n}.bias": (s[0],) for n, s in _linear(arch, layer).items()}
    if arch == "gpt2":
        return {**biases, **before, "attn_norm.bias": (D,), "ffn_norm.bias": (D,)}
    if arch == "mamba":
        return {"attn_norm.weight": (D,), "ssm_conv1d.weight": (2 * D, 4), "ssm_conv1d.bias": (2 * D,),
                "ssm_dt.bias": (2 * D,), "ssm_a": (2 * D, 8), "ssm_d": (2 * D,)}  # fmt: skip
    if arch == "gpt-oss":
        stacks = {f"{n}.bias": s[:2] for n, s in _linear(arch, layer).items() if n.endswith("_exps")}
        return {**biases, **stacks, "attn_norm.weight": (D,), "post_attention_norm.weight": (D,),
                "attn_sinks.weight": (HEADS,)}  # fmt: skip
    if arch.startswith("qwen35"):
        norms: dict[str, tuple[int, ...]] = {"attn_norm.weight": (D,), "post_attention_norm.weight": (D,)}
        norms |= {"ffn_gate_inp_shexp.weight": (D,)} if arch == "qwen35moe" else {}
        return norms | (head if layer % 2 else {
            "ssm_conv1d.weight": (2 * KV * SIZE + D, 4), "ssm_dt.bias": (HEADS,), "ssm_a": (HEADS,),
            "ssm_norm.weight": (SIZE,),
        })  # fmt: skip
    if arch == "olmo2":
        return {**after, "attn_q_norm.weight": (D,), "attn_k_norm.weight": (KV * SIZE,)}
    qkv = {f"attn_{n}.bias": biases[f"attn_{n}.bias"] for n in "qkv"} if arch == "qwen2" else {}
    more = {"gemma2": after, "gemma3": {**after, **head}, "qwen3": head, "qwen3moe": head, "qwen2": qkv}
    return {**before, **more.get(arch, {})}


def shapes(arch: str) -> dict[str, tuple[int, ...]]:
    """Every tensor of a decoder."""
    made: dict[str, tuple[int, ...]] = {"token_embd.weight": (WORDS, D), "output_norm.weight": (D,)}
    if arch not in ("gemma2", "gemma3", "gpt2", "mamba"):
        made["output.weight"] = (WORDS, D)
    if arch == "gpt2":
        made |= {"position_embd.weight": (64, D), "output_norm.bias": (D,)}
    for i in range(LAYERS):
        made |= {f"blk.{i}.{n}.weight": s for n, s in _linear(arch, i).items()}
        made |= {f"blk.{i}.{n}": s for n, s in _vectors(arch, i).items()}
    return made


def products(arch: str) -> dict[str, tuple[int, ...]]:
    """The matrices that the model multiplies by, without the ends of their names."""
    if arch in ENCODERS:
        held = gguf_encoders.tensors(arch)
        found = {n: a.shape for n, a in held.items() if a.ndim == 2 and n.startswith("blk.")}
    else:
        found = {f"blk.{i}.{n}.weight": s for i in range(LAYERS) for n, s in _linear(arch, i).items()}
    return {name.removesuffix(".weight"): shape for name, shape in found.items()}


def tensors(arch: str) -> dict[str, npt.NDArray[np.float32]]:
    if arch in ENCODERS:
        return gguf_encoders.tensors(arch)
    made = {}
    for name, shape in shapes(arch).items():
        if name.endswith("ssm_a"):
            made[name] = -1 - np.abs(formula(name, shape, 1.0))
        elif name.endswith("norm.weight"):
            made[name] = formula(name, shape, 0.1, 1.0)
        elif name.endswith((".bias", "ssm_d", "ffn_gate_inp_shexp.weight", "attn_sinks.weight")):
            made[name] = formula(name, shape, 0.3)
        else:
            made[name] = formula(name, shape, 2.0 * shape[-1] ** -0.5)
    return made


def write(path: Path, arch: str, changed: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> Path:
    """The model as a file. `changed` are settings, without the architecture's name before them, None for none; `more`
    are tensors."""
    named = {f"{arch}.{key}": value for key, value in changed.items()}
    if arch in ENCODERS:
        gguf_encoders.write(path, arch, "mean", **{"tokenizer.ggml.token_type_count": 2, **named})
        if more:
            with gguf.read(path) as file:
                held = {name: tensor.read() for name, tensor in file.tensors.items()}
                metadata = dict(file.metadata)
            gguf.write(path, metadata, held | dict(more))
        return path
    metadata = {f"{arch}.{key}": value for key, value in settings(arch).items()} | named
    metadata = {"general.architecture": arch, **TOKENIZER, **metadata}
    gguf.write(path, {k: v for k, v in metadata.items() if v is not None}, tensors(arch) | dict(more or {}))
    return path
