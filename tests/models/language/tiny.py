"""Tiny language models as folders, with weights that a formula gives, and their definition in NumPy's float64."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rlx
from rlx.formats import gguf, safetensors
from rlx.packed import PackedArray
from tests.models.tiny import formula

F64 = npt.NDArray[np.float64]
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 60, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 1000.0, "tie_word_embeddings": False,
}  # fmt: skip
GEMMA: dict[str, Any] = {
    **LLAMA, "model_type": "gemma2", "sliding_window": 5, "query_pre_attn_scalar": 9, "attn_logit_softcapping": 4.0,
    "final_logit_softcapping": 3.0, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
TOKENS = np.array([3, 17, 17, 42, 5, 58, 31, 8, 9, 10, 22, 46, 3, 51, 0, 29, 33, 12, 7, 40, 41], np.int32)


def nmse(got: Any, want: Any) -> float:
    """The squared errors' sum, relative to the sum of squares."""
    return float(((got - want) ** 2).sum() / (want**2).sum())


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights, written out from the published format."""
    d, wide, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    made: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], d)}
    made["model.norm.weight"] = (d,)
    if not config["tie_word_embeddings"]:
        made["lm_head.weight"] = (config["vocab_size"], d)
    norms = ["input_layernorm", "post_attention_layernorm"]
    if config["model_type"] == "gemma2":
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}."
        made |= {f"{p}{norm}.weight": (d,) for norm in norms}
        made |= {f"{p}self_attn.q_proj.weight": (q, d), f"{p}self_attn.o_proj.weight": (d, q)}
        made |= {f"{p}self_attn.{n}_proj.weight": (kv, d) for n in "kv"}
        made |= {f"{p}mlp.{n}_proj.weight": (wide, d) for n in ("gate", "up")} | {f"{p}mlp.down_proj.weight": (d, wide)}
    return made


def weights(config: dict[str, Any] = LLAMA) -> dict[str, npt.NDArray[np.float32]]:
    return {
        name: formula(name, shape, 0.5, 1.0) if len(shape) == 1 else formula(name, shape, 2.5 * shape[1] ** -0.5)
        for name, shape in shapes(config).items()
    }


def write_language_model(folder: Path, config: dict[str, Any] = LLAMA, text: bool = False) -> Path:
    """The model's folder, with a tokenizer of single bytes where `text`, of at most 128 tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save(folder / "model.safetensors", weights(config))
    if text:
        (folder / "tokenizer.json").write_text(json.dumps(_bytes_tokenizer(min(config["vocab_size"], 128))))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 1}))
    return folder


def write_mamba(folder: Path) -> Path:
    """A recurrent model's folder, of a vocabulary of 20."""
    config = {"model_type": "mamba", "vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "state_size": 4}
    parts = {"norm.weight": (8,), "mixer.in_proj.weight": (32, 8), "mixer.conv1d.weight": (16, 1, 4)}
    parts |= {"mixer.conv1d.bias": (16,), "mixer.x_proj.weight": (9, 16), "mixer.dt_proj.weight": (16, 1)}
    parts |= {"mixer.dt_proj.bias": (16,), "mixer.A_log": (16, 4), "mixer.D": (16,), "mixer.out_proj.weight": (8, 16)}
    named = {f"backbone.layers.0.{name}": shape for name, shape in parts.items()}
    named |= {"backbone.embeddings.weight": (20, 8), "backbone.norm_f.weight": (8,)}
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.save(folder / "model.safetensors", {name: formula(name, s, 1.0) for name, s in named.items()})
    return folder


def _bytes_tokenizer(size: int) -> dict[str, Any]:
    marks = ["<pad>", "<s>", "</s>"]
    letters = ["Ġ", "Ã", "©", *(chr(0x61 + i) for i in range(26)), *(chr(0x21 + i) for i in range(size - 32))]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [
            {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False} for i, t in enumerate(marks)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "merges": [],
                  "vocab": {t: i for i, t in enumerate([*marks, *letters])}},
    }  # fmt: skip


def logits(config: dict[str, Any], tokens: npt.NDArray[Any] = TOKENS, given: Mapping[str, Any] | None = None) -> F64:
    """The logits after each token, in float64, from the papers' formulas."""
    held = weights(config) if given is None else given
    w = {name.removeprefix("model."): array.astype(np.float64) for name, array in held.items()}
    gemma, heads, kv = config["model_type"] == "gemma2", config["num_attention_heads"], config["num_key_value_heads"]
    size, n = config["head_dim"], len(tokens)

    def norm(x: F64, name: str) -> F64:
        gamma = w[f"{name}.weight"] + (1.0 if gemma else 0.0)
        return np.asarray(x / np.sqrt(np.mean(x * x, -1, keepdims=True) + config["rms_norm_eps"]) * gamma)

    angles = np.outer(np.arange(n), config["rope_theta"] ** -(np.arange(0, size, 2) / size))

    def turned(x: F64) -> F64:
        a, b = x[..., : size // 2], x[..., size // 2 :]
        c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def capped(x: F64, cap: float | None) -> F64:
        return x if cap is None else cap * np.tanh(x / cap)

    def attention(x: F64, layer: int) -> F64:
        p = f"layers.{layer}.self_attn"
        q, k, v = ((x @ w[f"{p}.{m}_proj.weight"].T).reshape(n, -1, size) for m in "qkv")
        q, k = turned(q), turned(k)
        k, v = (np.repeat(t, heads // kv, 1) for t in (k, v))
        scale = (config["query_pre_attn_scalar"] if gemma else size) ** -0.5
        scores = capped(np.einsum("ihd,jhd->hij", q, k) * scale, config.get("attn_logit_softcapping"))
        behind = np.arange(n)[:, None] - np.arange(n)
        seen = (behind >= 0) & (behind < (config["sliding_window"] if gemma and layer % 2 == 0 else n))
        scores = np.where(seen, scores, -np.inf)
        p_ = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", p_ / p_.sum(-1, keepdims=True), v).reshape(n, -1)
        return np.asarray(mixed @ w[f"{p}.o_proj.weight"].T)

    def mlp(x: F64, layer: int) -> F64:
        gate, up = (x @ w[f"layers.{layer}.mlp.{m}_proj.weight"].T for m in ("gate", "up"))
        inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        gate = 0.5 * gate * (1 + np.tanh(inner)) if gemma else gate / (1 + np.exp(-gate))
        return np.asarray((gate * up) @ w[f"layers.{layer}.mlp.down_proj.weight"].T)

    x = w["embed_tokens.weight"][tokens] * (config["hidden_size"] ** 0.5 if gemma else 1.0)
    for i in range(config["num_hidden_layers"]):
        p = f"layers.{i}."
        made = attention(norm(x, f"{p}input_layernorm"), i)
        x = x + (norm(made, f"{p}post_attention_layernorm") if gemma else made)
        made = mlp(norm(x, f"{p}{'pre_feedforward' if gemma else 'post_attention'}_layernorm"), i)
        x = x + (norm(made, f"{p}post_feedforward_layernorm") if gemma else made)
    table = w["embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"]
    return capped(norm(x, "norm") @ table.T, config.get("final_logit_softcapping"))


PACKED: dict[str, Any] = {**LLAMA, "hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
_GGUF = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "model.layers.": "blk.", "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
}  # fmt: skip


def write_gguf(path: Path, packed: str | None) -> dict[str, npt.NDArray[Any]]:
    """The model PACKED as a GGUF file, its matrices in a packed dtype; gives the weights that the file holds, by their
    names in a folder."""
    c, tensors, held = PACKED, {}, {}
    for name, array in weights(c).items():
        kept: Any = array if packed is None or array.ndim == 1 else rlx.quantize(array, packed)
        held[name] = array if kept is array else kept.dequantize()
        if ".q_proj" in name or ".k_proj" in name:  # llama.cpp rotates neighbours, and orders the rows for it
            order = np.arange(len(array)).reshape(-1, 2, c["head_dim"] // 2).swapaxes(1, 2).reshape(-1)
            kept = array[order] if kept is array else PackedArray(kept.dtype, kept.shape, kept.data[order])
        for theirs, ours in _GGUF.items():
            name = name.replace(theirs, ours)
        tensors[name] = kept
    metadata = {
        "general.architecture": "llama", "llama.block_count": c["num_hidden_layers"], "llama.context_length": 64,
        "llama.embedding_length": c["hidden_size"], "llama.feed_forward_length": c["intermediate_size"],
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2, "llama.rope.freq_base": c["rope_theta"],
        "llama.attention.layer_norm_rms_epsilon": c["rms_norm_eps"],
    }  # fmt: skip
    gguf.write(path, metadata, tensors)
    return held


def greedy(config: dict[str, Any], tokens: npt.NDArray[Any], count: int) -> list[int]:
    """The likeliest tokens that follow, one after the other, in float64."""
    made = tokens.tolist()
    for _ in range(count):
        made.append(int(logits(config, np.asarray(made))[-1].argmax()))
    return made[len(tokens) :]
