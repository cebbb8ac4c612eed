"""`python -m tests.formats.packed_sweep [--count N] [--seed S]`: quantized weights of random shapes beside integers.

GPTQ in both formats, AWQ, and int4 and int8 of compressed-tensors are written out of random codes, zeros and scales,
with every width, group and order of columns that their tools offer. What rlx reads must be scale · (code - zero),
rounded once to f32, and its products on the engine those of float64; what it cannot hold must be refused by name. Exit
status 1 where something is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import rlx
from rlx.errors import ModelFormatError
from rlx.formats.quantized import QuantizedTensors

Array = NDArray[Any]
NIBBLES_OF_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each nibble of a word


def words(values: Array, bits: int) -> NDArray[np.int32]:
    """Neighbours of the last axis in words of 32 bits, the first in the lowest; widths that do not divide 32 go on in
    the next word, as GPTQ's 3 bits do."""
    stream = (values[..., None] >> np.arange(bits) & 1).reshape(*values.shape[:-1], -1).astype(np.uint8)
    missing = -stream.shape[-1] % 32
    stream = np.pad(stream, [(0, 0)] * (stream.ndim - 1) + [(0, missing)])
    return np.ascontiguousarray(np.packbits(stream, -1, "little")).view("<i4")


def scales_of(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    dtype = np.dtype(rng.choice(np.array([np.float16, ml_dtypes.bfloat16, np.float32], object)))
    s = rng.uniform(-0.1, 0.1, shape).astype(dtype)
    s[rng.random(shape) < 0.05] = rng.choice([0.0, 6e-8, 60000.0, -1e-7])
    return s


class Case:
    """One weight: its tensors, its settings, its numbers in float64, and whether rlx must read it."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.method = str(rng.choice(["gptq", "gptq_v2", "awq", "compressed"]))
        self.bits = int(rng.choice([4, 4, 8, 8, 2, 3] if self.method.startswith("gptq") else [4, 4, 4, 8]))
        self.columns = int(rng.choice([32, 64, 96, 128, 160, 256, 384, 512, 640, 48]))
        groups_of = [g for g in (32, 64, 96, 128, 160, 256) if self.columns % g == 0] or [-1]
        self.group = int(rng.choice([-1, *groups_of] if rng.random() < 0.8 else [64, 128, 256, 48, 16]))
        self.rows = int(rng.choice([8, 16, 24, 32, 40, 64, 72, 136]))
        self.packed = bool(rng.random() < 0.5)
        ordered = bool(rng.random() < 0.1) and self.method.startswith("gptq")
        symmetric = bool(rng.random() < 0.3)
        each = self.columns if self.group == -1 else self.group
        n = -(-self.columns // each)
        top = 1 << self.bits
        codes = rng.integers(0, top, (self.rows, self.columns))
        zeros = np.full((self.rows, n), top // 2) if symmetric else rng.integers(0, top, (self.rows, n))
        groups = np.arange(self.columns) // each
        if ordered:
            groups = rng.permutation(groups)
        s = scales_of(rng, (self.rows, n))
        if self.method == "compressed":
            zeros, bits = np.full_like(zeros, top // 2), self.bits
            self._compressed(codes, s, bits)
        else:
            self._words(codes, zeros, s, groups, bool(rng.random() < 0.7) or ordered, symmetric)
        wide = s.astype(np.float64)[:, groups]
        self.numbers = (wide * (codes - zeros[:, groups])).astype(np.float32)
        divides = self.columns % each == 0 and each % 32 == 0 and self.columns % 32 == 0
        trivial = np.array_equal(groups, np.arange(self.columns) // each)
        self.readable = divides and trivial and self.bits in ((4,) if self.method == "awq" else (4, 8))
        self.name = f"{self.method} {self.bits} bits {codes.shape} groups of {self.group} scales {s.dtype}"
        self.name += f"{' ordered' * ordered}{' symmetric' * symmetric}"

    def _words(self, codes: Array, zeros: Array, s: Array, groups: Array, indexed: bool, symmetric: bool) -> None:
        self.settings: dict[str, Any] = {"bits": self.bits, "group_size": self.group, "sym": symmetric}
        if self.method == "awq":
            order = np.array(NIBBLES_OF_AWQ) if self.bits == 4 else np.arange(32 // self.bits)

            def stored(x: Array) -> Array:
                return words(x.reshape(len(x), -1, len(order))[..., order].reshape(len(x), -1), self.bits)

            self.arrays = {"q.qweight": stored(codes.T), "q.qzeros": stored(zeros.T), "q.scales": s.T}
            self.settings |= {"quant_method": "awq", "zero_point": True, "version": "gemm"}
            return
        held = words(zeros.T, self.bits).view(np.uint32)
        if self.method == "gptq":
            held = held - words(np.ones_like(zeros.T), self.bits).view(np.uint32)
        self.arrays = {"q.qweight": words(codes, self.bits).T, "q.qzeros": held.view(np.int32), "q.scales": s.T}
        if indexed:
            self.arrays["q.g_idx"] = groups.astype(np.int32)
        self.settings |= {"quant_method": "gptq", "desc_act": indexed, "checkpoint_format": self.method}

    def _compressed(self, codes: Array, s: Array, bits: int) -> None:
        weights = {"num_bits": bits, "group_size": None if self.group == -1 else self.group, "symmetric": True,
                   "type": "int", "strategy": "channel" if self.group == -1 else "group"}  # fmt: skip
        self.settings = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
        if bits == 4 or self.packed:
            self.arrays = {"q.weight_packed": words(codes, bits), "q.weight_scale": s,
                           "q.weight_shape": np.array(codes.shape)}  # fmt: skip
        else:
            self.arrays = {"q.weight": (codes - 128).astype(np.int8), "q.weight_scale": s}


def fault(case: Case, rng: np.random.Generator) -> str | None:
    """What is wrong with the way a weight is read; None where nothing is, "" where it is rightly refused."""
    try:
        arrays = {n: np.ascontiguousarray(a) for n, a in case.arrays.items()}
        weight: Any = QuantizedTensors(arrays, case.settings, "a folder")["q.weight"]
    except ModelFormatError as error:
        return f"refused: {error}" if case.readable else ""
    if not case.readable:
        # Read all the same is right where the numbers are.
        if weight.shape != case.numbers.shape or not np.array_equal(weight.dequantize("f64"), case.numbers):
            return "read, with other numbers"
        return None
    if weight.shape != case.numbers.shape or not np.array_equal(weight.dequantize("f64"), case.numbers):
        return "other numbers"
    x = rng.standard_normal((int(rng.choice([1, 1, 2, 5, 17])), case.columns)).astype(np.float32)
    want = x.astype(np.float64) @ case.numbers.T.astype(np.float64)
    got = np.asarray(rlx.jit(lambda t: rlx.linear(t, weight), device="cpu")(x)).astype(np.float64)
    limit = 2e-6 * (np.abs(x).astype(np.float64) @ np.abs(case.numbers.T).astype(np.float64)) + 1e-30
    return None if (np.abs(got - want) <= limit).all() else "another product"


def counted(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    kinds, found = Counter[str](), []
    for i in range(count):
        rng = np.random.default_rng((seed, i))
        case = Case(rng)
        says = fault(case, rng)
        kinds["right" if says is None else "refused" if says == "" else "wrong"] += 1
        if says:
            found.append(f"seed {seed}, case {i}: {case.name}: {says}")
    return kinds, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    kinds, found = counted(asked.count, asked.seed)
    print("\n".join(found[:20]))
    print(f"{asked.count} weights: {dict(kinds)}")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
