"""Checks that a weight's row gives the same bits whatever its neighbours: `python -m tests.cpu.rows_of_weights`.

Products of a weight of 37 rows are compared with those of parts of it, of 1 to 31 rows, for each form of the kernels
that runs here, every dtype of a weight, and few and many rows of x. Some rows of x and of the weight are tiny or have
special values, for which kernels take other paths.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import numpy as np

import rlx
from rlx.backends.cpu.machine import Machine
from rlx.backends.cpu.packed.decode import FORMATS
from rlx.dtypes import DType, as_dtype
from tests.cpu.processors import FORMS, lacking, machine_of
from tests.cpu.test_engine_products import Array, bound, floats, packed_rows, run

ROWS = 37
PARTS = (1, 2, 15, 16, 17, 31)
STARTS = (0, 4, 20)
NAMES = (*FORMATS, "bf16", "f16", "f32")
ROWS_OF_X = (1, 2, 3, 7, 9, 16, 17, 33)
TERMS = (768, 5120)
_TINY, _INFINITE, _NAN = 5, 20, 33  # rows of the weight


def weight(name: str, terms: int, special: bool) -> Array:
    """The bytes or elements of a weight's rows."""
    dtype = as_dtype(name)
    if not dtype.is_packed:
        raw = floats(ROWS, terms).astype(dtype.np)
        if special:
            raw[_TINY] *= 1e-30
            raw[_INFINITE, 3], raw[_NAN, 7] = np.inf, np.nan
        return raw
    raw, end = packed_rows(name, ROWS, terms).data.copy(), 0
    for plane in dtype.storage.planes if special else ():
        start, end = end, end + terms // dtype.storage.elements * plane.nbytes
        if plane.name in ("d", "dm", "s"):
            kind = np.float32 if plane.name == "s" else np.float16
            scales = raw[:, start:end].copy().view(kind)
            scales[_TINY] = 1e-30 if plane.name == "s" else 2.0**-24
            scales[_INFINITE, 0], scales[_NAN, 0] = np.inf, np.nan
            raw[:, start:end] = scales.view(np.uint8)
        elif plane.name == "e":
            raw[_TINY, start:end], raw[_INFINITE, start] = 0, 255
    return raw


def given(m: int, terms: int, special: bool) -> Array:
    """Rows of x."""
    x = floats(m, terms)
    if special and m > 17:  # with fewer it is the weight alone whose rows are special
        x[2] *= np.float32(1e-32)
        x[8, 4] = np.inf
    return x


def product(x: Array, raw: Array, dtype: DType, machine: Machine) -> Array:
    """x times the weight, in two pieces."""
    graph = rlx.Graph("rows")
    rows = np.ascontiguousarray(raw)
    a = graph.input("x", x.shape)
    w = graph.input("w", (len(rows), x.shape[1]), dtype)
    y = rlx.packed_matmul(a, w) if dtype.is_packed else rlx.matmul(a, w, transpose_b=True)
    out = np.full((len(x), len(rows)), np.nan, np.float32)
    run(bound(y.node, [x, rows], [out], machine, True), machine, 2)
    return out


def differing(
    machine: Machine, name: str, m: int, terms: int, special: bool, parts: Iterable[int] = PARTS
) -> tuple[int, int]:
    """How many products with parts of the weight were made, and how many differ from those with the whole weight."""
    dtype, raw, x = as_dtype(name), weight(name, terms, special), given(m, terms, special)
    whole = product(x, raw, dtype, machine)
    tried = wrong = 0
    for count in parts:
        for start in STARTS:
            part = product(x, raw[start : start + count], dtype, machine)
            tried += 1
            wrong += part.tobytes() != whole[:, start : start + count].tobytes()
    return tried, wrong


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    failed = 0
    print(f"{'form':8} {'weight':10} {'products':>8} {'other bits':>10}")
    for form, needs in FORMS.items():
        if (machine := machine_of(needs)) is None:
            print(f"{form:8} skipped: {lacking(needs)}")
            continue
        for name in NAMES:
            counts = [
                differing(machine, name, m, terms, special)
                for m in ROWS_OF_X
                for terms in TERMS
                for special in (False, True)
            ]
            tried, wrong = (sum(column) for column in zip(*counts, strict=True))
            failed += wrong
            print(f"{form:8} {name:10} {tried:8} {wrong:10}", flush=True)
    return min(failed, 1)


if __name__ == "__main__":
    raise SystemExit(main())
