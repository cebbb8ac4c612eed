"""Tiny encoders as GGUF files, with weights that a formula gives, and their definition in NumPy's float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf

import rlx
from rlx.formats import gguf
from tests.models.tiny import SPECIAL, WORDS, formula

F64 = npt.NDArray[np.float64]
D, WIDE, HEADS, LAYERS, POSITIONS, EPS = 32, 64, 4, 2, 40, 1e-12
ARCHITECTURES = ("bert", "nomic-bert", "jina-bert-v2")
POOLINGS = {"mean": 1, "cls": 2, "last": 3, "rank": 4}


def tensors(arch: str, rank: bool = False) -> dict[str, npt.NDArray[np.float32]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (48, D), "token_types.weight": (2, D), "token_embd_norm.weight": (D,),
        "token_embd_norm.bias": (D,),
    }  # fmt: skip
    if arch == "bert":
        shapes["position_embd.weight"] = (POSITIONS, D)
    linear = {"attn_output": (D, D), "ffn_up": (WIDE, D), "ffn_down": (D, WIDE)}
    linear |= {"attn_qkv": (3 * D, D)} if arch == "nomic-bert" else {f"attn_{n}": (D, D) for n in "qkv"}
    linear |= {} if arch == "bert" else {"ffn_gate": (WIDE, D)}
    plain = {"nomic-bert": set(linear), "jina-bert-v2": {"ffn_up", "ffn_gate"}, "bert": set()}[arch]
    for i in range(LAYERS):
        for name, shape in linear.items():
            shapes[f"blk.{i}.{name}.weight"] = shape
            shapes |= {} if name in plain else {f"blk.{i}.{name}.bias": shape[:1]}
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes |= {f"blk.{i}.{name}.weight": (D,), f"blk.{i}.{name}.bias": (D,)}
    if rank:
        shapes |= {"cls.weight": (D, D), "cls.bias": (D,), "cls.output.weight": (1, D), "cls.output.bias": (1,)}
    return {n: formula(n, s, 0.3, 1.0 if n.endswith("norm.weight") else 0.0) for n, s in shapes.items()}


def write(
    path: Path, arch: str, pooling: str | None = "mean", packed: str | None = None, **changed: Any
) -> dict[str, Any]:
    """The file, and the weights that it holds."""
    held: dict[str, Any] = {}
    made: dict[str, Any] = {}
    for name, array in tensors(arch, pooling == "rank").items():
        kept: Any = rlx.quantize(array, packed) if packed and array.ndim == 2 and array.shape[0] > 2 else array
        made[name], held[name] = kept, array if kept is array else kept.dequantize()
    tokens = [*SPECIAL, *(w[2:] if w.startswith("##") else f"▁{w}" for w in WORDS)]
    tokens += [f"▁unused{i}" for i in range(48 - len(tokens))]
    metadata = {
        "general.architecture": arch, f"{arch}.block_count": LAYERS, f"{arch}.context_length": POSITIONS,
        f"{arch}.embedding_length": D, f"{arch}.feed_forward_length": WIDE, f"{arch}.attention.head_count": HEADS,
        f"{arch}.attention.layer_norm_epsilon": EPS, f"{arch}.attention.causal": False,
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.token_type": [3 if t.startswith("[") else 1 for t in tokens],
        "tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.cls_token_id": 2, "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.padding_token_id": 0,
    }  # fmt: skip
    if pooling is not None:
        metadata[f"{arch}.pooling_type"] = POOLINGS[pooling]
    if arch == "nomic-bert":
        metadata[f"{arch}.rope.freq_base"] = 1000.0
    metadata |= changed
    gguf.write(path, {k: v for k, v in metadata.items() if v is not None}, made)
    return held


def states(arch: str, held: dict[str, Any], ids: list[int], kinds: list[int]) -> F64:
    """The vectors of the tokens after the last layer, (tokens, D)."""
    w = {name: np.asarray(a, np.float64) for name, a in held.items()}
    n, size = len(ids), D // HEADS

    def norm(x: F64, name: str) -> F64:
        x = x - x.mean(-1, keepdims=True)
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * w[f"{name}.weight"] + w[f"{name}.bias"])

    def linear(x: F64, name: str) -> F64:
        return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0))

    def turned(x: F64) -> F64:
        angles = np.outer(np.arange(n), 1000.0 ** -(np.arange(0, size, 2) / size))[:, None]
        a, b = x[..., : size // 2], x[..., size // 2 :]
        return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)

    x = w["token_embd.weight"][ids] + w["token_types.weight"][kinds]
    if arch == "bert":
        x = x + w["position_embd.weight"][:n]
    x = norm(x, "token_embd_norm")
    for i in range(LAYERS):
        p = f"blk.{i}"
        if arch == "nomic-bert":
            parts = np.split(linear(x, f"{p}.attn_qkv"), 3, -1)
        else:
            parts = [linear(x, f"{p}.attn_{m}") for m in "qkv"]
        q, k, v = (t.reshape(n, HEADS, size) for t in parts)
        if arch == "nomic-bert":
            q, k = turned(q), turned(k)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(size)
        if arch == "jina-bert-v2":
            apart = np.abs(np.arange(n)[:, None] - np.arange(n))
            scores = scores - apart * (0.25 ** np.arange(1, HEADS + 1))[:, None, None]  # 2^(-8 h / 4)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v).reshape(n, D)
        x = norm(linear(mixed, f"{p}.attn_output") + x, f"{p}.attn_output_norm")
        up = linear(x, f"{p}.ffn_up")
        gate = up if arch == "bert" else linear(x, f"{p}.ffn_gate")
        act = gate / (1 + np.exp(-gate)) if arch == "nomic-bert" else gate * 0.5 * (1 + erf(gate / np.sqrt(2)))
        x = norm(linear(act if arch == "bert" else act * up, f"{p}.ffn_down") + x, f"{p}.layer_output_norm")
    return x


def embedding(found: F64, pooling: str) -> F64:
    vector = {"mean": found.mean(0), "cls": found[0], "last": found[-1]}[pooling]
    return np.asarray(vector / np.linalg.norm(vector))


def score(held: dict[str, Any], found: F64) -> float:
    w = {name: np.asarray(a, np.float64) for name, a in held.items() if name.startswith("cls")}
    dense = np.tanh(w["cls.weight"] @ found[0] + w["cls.bias"])
    return float((w["cls.output.weight"] @ dense + w["cls.output.bias"])[0])
