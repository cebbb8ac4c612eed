"""The error of rlx.quantize beside that of ggml's own quantizers, on random and heavy-tailed weights.

    python benchmarks/language/quantize_error.py LIBS [--rows 64] [--only q4_k …]

LIBS is a folder with llama.cpp's libraries (libggml-base.so), which ctypes calls. A line is a format: for each kind of
weights rlx's relative squared error, ggml's, and their ratio. The exit status is 1 where rlx's is larger.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import numpy.typing as npt

from rlx import PackedArray, quantize
from rlx.dtypes import GGUF, PACKED
from rlx.packed.search import SEARCHES

# The numbers of ggml's types (`enum ggml_type`).
TYPES = {
    "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 10, "q3_k": 11, "q4_k": 12, "q5_k": 13, "q6_k": 14,
    "iq4_nl": 20, "iq4_xs": 23, "tq2_0": 35, "mxfp4": 39, "nvfp4": 40,
}  # fmt: skip
COLUMNS = 4096


def kinds(rows: int) -> dict[str, npt.NDArray[np.float32]]:
    rng, shape = np.random.default_rng(1), (rows, COLUMNS)
    normal = rng.standard_normal(shape)
    drawn = {
        "normal": normal,
        "Student's t, 3": rng.standard_t(3, shape),
        "Laplace": rng.laplace(size=shape),
        "0.3 % of 20 times the size": normal * np.where(rng.random(shape) < 0.003, 20, 1),
        "uniform": rng.uniform(-1, 1, shape),
        "positive": np.abs(normal),
    }
    return {name: (x * 0.02).astype(np.float32) for name, x in drawn.items()}


def by_ggml(library: ctypes.CDLL, x: npt.NDArray[np.float32], name: str) -> npt.NDArray[np.float32]:
    made = np.zeros(PACKED[name].array_shape(x.shape), np.uint8)
    written = library.ggml_quantize_chunk(TYPES[name], x.ctypes.data, made.ctypes.data, 0, *x.shape, None)
    if written != made.nbytes:
        raise SystemExit(f"ggml wrote {written} bytes of {name}, not {made.nbytes}")
    return PackedArray.from_gguf(made, name, x.shape).dequantize()


def error(made: npt.NDArray[np.float32], x: npt.NDArray[np.float32]) -> float:
    wide = x.astype(np.float64)
    return float(np.sum((made - wide) ** 2) / np.sum(wide**2))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("libs", type=Path)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--only", nargs="*", default=[n for n in SEARCHES if n in GGUF])
    given = parser.parse_args()
    library = ctypes.CDLL(str(given.libs / "libggml-base.so"))
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3, ctypes.c_void_p
    ]  # fmt: skip
    worse = False
    for name in given.only:
        cells = []
        start = time.perf_counter()
        for kind, x in kinds(given.rows).items():
            mine, theirs = error(quantize(x, name).dequantize(), x), error(by_ggml(library, x, name), x)
            cells.append(f"{kind} {mine:.3e} / {theirs:.3e} = {mine / theirs:.3f}")
            worse = worse or mine > theirs
        print(f"{name:8} {'; '.join(cells)} ({time.perf_counter() - start:.1f} s)", flush=True)
    return int(worse)


if __name__ == "__main__":
    sys.exit(main())
