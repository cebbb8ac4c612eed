"""The types of tensors in llama.cpp's mixtures, and the errors of its packed weights beside rlx's: by hand, with the
folder of llama.cpp's libraries for the CPU (of its release v0.5.0):  python -m tests.formats.gguf.mixtures FOLDER"""

from __future__ import annotations

import ctypes as c
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from rlx.formats import gguf
from rlx.formats.gguf.requantize import MIXTURES, requantize
from rlx.packed import PackedArray
from tests.formats.gguf.llamacpp import Judge

FROZEN = Path(__file__).with_name("mixtures.json")
# Architecture, layers, width, inner width, key heads of 4 heads, experts, whether q, k and v are one matrix, and
# whether the embeddings are the output.
CASES: dict[str, tuple[str, int, int, int, int, int, bool, bool]] = {
    "16 layers": ("llama", 16, 256, 512, 2, 0, False, False), "tied": ("llama", 9, 256, 256, 1, 0, False, True),
    "rows of 288": ("llama", 3, 288, 320, 2, 0, False, False),
    "rows of 264": ("llama", 2, 264, 256, 2, 0, False, False),
    "8 experts": ("llama", 8, 256, 256, 2, 8, False, False),
    "16 experts": ("qwen3moe", 8, 256, 256, 2, 16, False, False),
    "joined": ("phi3", 8, 256, 256, 4, 0, True, False), "falcon": ("falcon", 20, 256, 512, 1, 0, True, False),
}  # fmt: skip


def write(path: Path, case: str, rows: int | None = None) -> Path:
    """The case's file in F16; with `rows` its matrices have so many instead of their own, which no program runs."""
    a, layers, d, inner, kv, experts, joined, tied = CASES[case]
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (96, d), "output_norm.weight": (d,)}
    if not tied:
        shapes["output.weight"] = (96, d)
    for i in range(layers):
        own: dict[str, tuple[int, ...]] = {"attn_norm": (d,), "ffn_norm": (d,), "attn_output": (d, d)}
        own |= {"attn_qkv": (d + d // 2 * kv, d)} if joined else {"attn_q": (d, d)}
        own |= {} if joined else {f"attn_{n}": (d // 4 * kv, d) for n in "kv"}
        if experts:
            own |= {"ffn_gate_inp": (experts, d), "ffn_down_exps": (experts, d, inner)}
            own |= {f"ffn_{n}_exps": (experts, inner, d) for n in ("gate", "up")}
        else:
            own |= {"ffn_up": (inner * (2 if a == "phi3" else 1), d), "ffn_down": (d, inner)}
            own |= {} if joined else {"ffn_gate": (inner, d)}
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in own.items()}
        if a == "falcon":
            shapes |= {f"blk.{i}.attn_norm.bias": (d,), "output_norm.bias": (d,)}
    rng, tensors = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        shape = shape if rows is None or len(shape) == 1 else (rows, shape[-1])
        kind = np.float32 if len(shape) == 1 or "gate_inp" in name else np.float16
        tensors[name] = (rng.standard_normal(shape) * 0.05).astype(kind)
    settings = {
        "block_count": layers, "context_length": 64, "embedding_length": d, "feed_forward_length": inner,
        "attention.head_count": 4, "attention.head_count_kv": kv, "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5, "vocab_size": 96, "rope.dimension_count": d // 4,
    }  # fmt: skip
    if experts:
        settings |= {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": inner}
    more = {f"{a}.{name}": value for name, value in settings.items()}
    gguf.write(path, {"general.architecture": a, "tokenizer.ggml.model": "no_vocab", **more}, tensors)
    return path


class _Params(c.Structure):
    _fields_ = [("threads", c.c_int32), ("kind", c.c_int32), ("rest", c.c_int32 * 62)]


def types_of(path: Path) -> dict[str, str]:
    with gguf.read(path) as file:
        return {name: t.dtype.name for name, t in file.tensors.items() if t.dtype.name != "f32"}


def _error(path: Path, source: Path) -> float:
    with gguf.read(path) as file, gguf.read(source) as exact:
        total = 0.0
        for name, t in file.tensors.items():
            held: Any = t.read()
            values = held.dequantize() if isinstance(held, PackedArray) else held
            total += float(((values.astype(np.float64) - exact.tensors[name].read().astype(np.float64)) ** 2).sum())  # type: ignore[union-attr]
    return total


def main() -> None:
    lib = Judge(Path(sys.argv[1]).resolve()).lib
    lib.llama_model_quantize_default_params.restype = _Params
    lib.llama_model_quantize.argtypes = [c.c_char_p, c.c_char_p, c.POINTER(_Params)]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        source, theirs, ours = (Path(work) / f"{name}.gguf" for name in ("source", "theirs", "ours"))
        for case in CASES:
            write(source, case)
            for mixture, (*_, number) in MIXTURES.items():
                params = lib.llama_model_quantize_default_params()
                params.threads, params.kind = 1, number
                assert lib.llama_model_quantize(str(source).encode(), str(theirs).encode(), c.byref(params)) == 0
                with gguf.read(source) as file:
                    requantize(file, ours, mixture)
                ratio = _error(ours, source) / _error(theirs, source)
                kinds = types_of(theirs)
                odd = {name: kind for name, kind in kinds.items() if kind != MIXTURES[mixture][0]}
                print(f"{case}, {mixture}: {kinds == types_of(ours)}, error {ratio:.4f} of llama.cpp's")
                found.setdefault(case, {})[mixture] = odd
    rows = ",\n".join(f" {json.dumps(case)}: {json.dumps(kinds)}" for case, kinds in found.items())
    FROZEN.write_text(f'{{"version": "v0.5.0", "others": {{\n{rows}}}}}\n')


if __name__ == "__main__":
    main()
