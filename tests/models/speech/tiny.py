"""A tiny Whisper folder, with weights that a formula gives, and its definition in NumPy's float64."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import erf

from rlx.formats import safetensors
from tests.models.tiny import formula

F64 = npt.NDArray[np.float64]
WORDS, START, END, UNTIMED, ENGLISH, FRENCH, TASKS = 60, 62, 61, 67, 63, 64, {"transcribe": 65, "translate": 66}
FRAMES, BANDS, D, VOCABULARY = 50, 20, 24, 120  # 50 timestamps and the one of 0, and one token that is none
CONFIG: dict[str, Any] = {
    "model_type": "whisper", "vocab_size": VOCABULARY, "num_mel_bins": BANDS, "d_model": D, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36, "max_source_positions": FRAMES, "max_target_positions": 32, "activation_function": "gelu",
    "scale_embedding": False,
}  # fmt: skip
GENERATION: dict[str, Any] = {
    "decoder_start_token_id": START, "eos_token_id": END, "no_timestamps_token_id": UNTIMED, "is_multilingual": True,
    "lang_to_id": {"<|en|>": ENGLISH, "<|fr|>": FRENCH}, "task_to_id": TASKS, "suppress_tokens": [5, 6, 60, 119],
    "begin_suppress_tokens": [7, END], "max_initial_timestamp_index": 10, "max_length": 28,
}  # fmt: skip


def weights() -> dict[str, npt.NDArray[np.float32]]:
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.conv1.weight": (D, BANDS, 3), "encoder.conv1.bias": (D,), "encoder.conv2.weight": (D, D, 3),
        "encoder.conv2.bias": (D,), "encoder.embed_positions.weight": (FRAMES, D),
        "decoder.embed_positions.weight": (32, D), "decoder.embed_tokens.weight": (VOCABULARY, D),
    }  # fmt: skip
    for side, inner in (("encoder", 40), ("decoder", 36)):
        norms = [f"{side}.layer_norm"]
        for i in range(2):
            p = f"{side}.layers.{i}"
            attentions = ["self_attn"] + (["encoder_attn"] if side == "decoder" else [])
            norms += [f"{p}.{a}_layer_norm" for a in attentions] + [f"{p}.final_layer_norm"]
            for a in attentions:
                shapes |= {f"{p}.{a}.{n}.weight": (D, D) for n in ("q_proj", "k_proj", "v_proj", "out_proj")}
                shapes |= {f"{p}.{a}.{n}.bias": (D,) for n in ("q_proj", "v_proj", "out_proj")}
            shapes |= {f"{p}.fc1.weight": (inner, D), f"{p}.fc1.bias": (inner,), f"{p}.fc2.weight": (D, inner)}
            shapes[f"{p}.fc2.bias"] = (D,)
        shapes |= {f"{n}.weight": (D,) for n in norms} | {f"{n}.bias": (D,) for n in norms}
    return {f"model.{n}": formula(n, s, 0.5, 1.0 if n.endswith("norm.weight") else 0.0) for n, s in shapes.items()}


def write_model(folder: Path, generation: dict[str, Any] = GENERATION, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changed}))
    (folder / "generation_config.json").write_text(json.dumps(generation))
    safetensors.save(folder / "model.safetensors", weights())
    marks = {END: "<|endoftext|>", START: "<|startoftranscript|>", ENGLISH: "<|en|>", FRENCH: "<|fr|>",
             65: "<|transcribe|>", 66: "<|translate|>", UNTIMED: "<|notimestamps|>"}  # fmt: skip
    vocab = {marks.get(i) or (f"<|{(i - 68) * 0.02:.2f}|>" if 68 <= i < 119 else chr(0x21 + i)): i
             for i in range(VOCABULARY)}  # fmt: skip
    added = [
        {"id": i, "content": t, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False} for i, t in marks.items()
    ]  # fmt: skip
    made = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": added, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                                           "use_regex": True},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "merges": [], "vocab": vocab},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(made))
    return folder


def sound(seconds: float, rate: int = 16000) -> npt.NDArray[np.float32]:
    t = np.arange(int(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * (200 + 300 * t) * t) + 0.1 * np.sin(2 * np.pi * 1700 * t)).astype(np.float32)


def write_wav(path: Path, samples: npt.NDArray[Any], rate: int = 16000, width: int = 2, channels: int = 1) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, width, rate, 0, "NONE", ""))
        top = 1 << (8 * width - 1)
        whole = np.clip(np.round(samples.astype(np.float64) * top), -top, top - 1).astype(np.int64)
        raw = (whole + (128 if width == 1 else 0)).astype("<i8").reshape(-1, 1).view(np.uint8)[:, :width]
        file.writeframes(raw.tobytes())
    return path


def logits(features: npt.NDArray[Any], tokens: list[int]) -> F64:
    """The logits after each token about a spectrogram, from the paper's description."""
    w = {n.removeprefix("model."): a.astype(np.float64) for n, a in weights().items()}

    def norm(x: F64, name: str) -> F64:
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return np.asarray(x * w[f"{name}.weight"] + w[f"{name}.bias"])

    def linear(x: F64, name: str) -> F64:
        return np.asarray(x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", 0.0))

    def gelu(x: F64) -> F64:
        return np.asarray(x * 0.5 * (1 + erf(x / np.sqrt(2))))

    def conv(x: F64, name: str, stride: int) -> F64:
        x = np.pad(x, ((0, 0), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(x, 3, 1)[:, ::stride]
        return gelu(np.einsum("ctk,ock->ot", windows, w[f"{name}.weight"]) + w[f"{name}.bias"][:, None])

    def attention(x: F64, over: F64, name: str, causal: bool = False) -> F64:
        of = {"q": x, "k": over, "v": over}
        q, k, v = (linear(t, f"{name}.{p}_proj").reshape(len(t), 3, -1) for p, t in of.items())
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        if causal:
            scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        e = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", e / e.sum(-1, keepdims=True), v).reshape(len(x), D)
        return linear(mixed, f"{name}.out_proj")

    def mlp(x: F64, p: str) -> F64:
        return linear(gelu(linear(norm(x, f"{p}.final_layer_norm"), f"{p}.fc1")), f"{p}.fc2")

    heard = conv(conv(np.asarray(features, np.float64), "encoder.conv1", 1), "encoder.conv2", 2).T
    heard = heard + w["encoder.embed_positions.weight"]
    for i in range(2):
        p = f"encoder.layers.{i}"
        n = norm(heard, f"{p}.self_attn_layer_norm")
        heard = heard + attention(n, n, f"{p}.self_attn")
        heard = heard + mlp(heard, p)
    heard = norm(heard, "encoder.layer_norm")
    x = w["decoder.embed_tokens.weight"][tokens] + w["decoder.embed_positions.weight"][: len(tokens)]
    for i in range(2):
        p = f"decoder.layers.{i}"
        n = norm(x, f"{p}.self_attn_layer_norm")
        x = x + attention(n, n, f"{p}.self_attn", causal=True)
        x = x + attention(norm(x, f"{p}.encoder_attn_layer_norm"), heard, f"{p}.encoder_attn")
        x = x + mlp(x, p)
    return np.asarray(norm(x, "decoder.layer_norm") @ w["decoder.embed_tokens.weight"].T)
