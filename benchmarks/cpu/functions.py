"""Every elementwise op and every reduction on the processor: rlx's compiled engine beside rlx on NumPy, in turns.

    python benchmarks/cpu/functions.py [OP …] [--dtype f32] [--elements 65536] [--slower] [--rounds 5]

Each row is one op of a program with bound inputs and outputs, on numbers of the domain of its first conformance case.
65,536 elements of f32 stay in a second-level cache, 8,388,608 come from memory. Times are processor time of one thread,
the minimum of some rounds, in nanoseconds an element. `--slower` keeps the rows that take longer than NumPy's.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import rlx
from benchmarks.cpu.recurrences import Engine, Row, bound_run, least
from benchmarks.harness import options
from rlx.conformance import domains
from rlx.conformance.case import Case, cases_of
from rlx.ir import apply
from rlx.ir.op import REGISTRY

_HARD = ("special", "any", "wide", "zeros", "holes", "far", "roots", "fractions")
_LEFT_OUT = ("fused", "batch_norm")
_REDUCED = ("sum", "mean", "prod", "max", "min", "argmax", "argmin")
_ROWS = ("softmax", "log_softmax", "layer_norm", "rms_norm", "l2_norm", "cumsum", "cumprod")


def case_of(op: str, dtype: str) -> Case | None:
    """The first case whose inputs, but for conditions, have the dtype, on numbers that are not special."""
    for case in cases_of(op):
        kinds = {s.dtype.name for s in case.inputs}
        alike = dtype in kinds and kinds <= {dtype, "bool"}
        if alike and not any(s.domain in _HARD or math.prod(s.shape) < 2 for s in case.inputs):
            return case
    return None


def function(op: str, dtype: str, n: int) -> Row | None:
    case = case_of(op, dtype)
    if case is None:
        return None
    arrays = [domains.make((n,), s.dtype, s.domain, i) for i, s in enumerate(case.inputs)]
    return lambda *given: apply(op, *given, **case.attrs), arrays


def reduction(op: str, dtype: str, shape: tuple[int, int], axes: tuple[int, ...]) -> Row:
    domain = "near_one" if op == "prod" else "normal"
    x = domains.make(shape, rlx.dtypes.as_dtype(dtype), domain, 0)
    if op.startswith("arg"):
        return lambda x: getattr(rlx, op)(x, axes[0]), [x]
    return lambda x: getattr(rlx, op)(x, axes), [x]


def rows(op: str, dtype: str, shape: tuple[int, int]) -> Row:
    kind = rlx.dtypes.as_dtype(dtype)
    x = domains.make(shape, kind, "near_one" if op == "cumprod" else "normal", 0)
    own = [domains.make(shape[1:], kind, "normal", i) for i in (1, 2)]
    if op == "layer_norm":
        return rlx.layer_norm, [x, *own]
    if op == "rms_norm":
        return rlx.rms_norm, [x, own[0]]
    return lambda x: getattr(rlx, op)(x, -1), [x]


def found(words: list[str], dtype: str, n: int) -> Iterator[tuple[str, Row]]:
    side = 1 << (n.bit_length() // 2)
    shape = (n // side, side)
    for op, record in REGISTRY.items():
        if record.expr is not None and op not in _LEFT_OUT and (not words or op in words):
            row = function(op, dtype, n)
            if row is not None:
                yield op, row
    floats = rlx.dtypes.as_dtype(dtype).is_float
    for op in _REDUCED:
        if not words or op in words:
            for axes, word in (((1,), "rows"), ((0,), "columns"), ((0, 1), "all")):
                if (op.startswith("arg") and len(axes) > 1) or (op == "mean" and not floats):
                    continue
                yield f"{op} of {word}", reduction(op, dtype, shape, axes)
    if floats:
        for op in _ROWS:
            if hasattr(rlx, op) and (not words or op in words):
                yield op, rows(op, dtype, shape)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("words", nargs="*", metavar="OP")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--elements", type=int, default=1 << 16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slower", action="store_true")
    parser.add_argument("--compile", action="store_true", help="only fill the cache of kernels")
    args = parser.parse_args()
    print(f"{args.dtype}, {args.elements} elements, ns each{'':8}{'NumPy':>10}{'engine':>10}{'ratio':>8}")
    for name, row in found(args.words, args.dtype, args.elements):
        runs = [bound_run(row, e, 1) for e in get_args(Engine)]
        if args.compile:
            runs[1]()
            continue
        plain, compiled = (t * 1e3 / args.elements for t in least(runs, args.rounds))
        if compiled > 0.97 * plain or not args.slower:
            print(f"{name:36}{plain:10.3f}{compiled:10.3f}{plain / compiled:8.2f}", flush=True)


if __name__ == "__main__":
    os.environ.pop("RLX_CPU", None)
    main()
