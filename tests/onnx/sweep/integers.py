"""A sweep over every operator that takes or gives integers × integer type × the ends of its range.

    python -m tests.onnx.sweep.integers [--only OPERATOR …] [--device cpu] [--write]

Each node runs fed and with constants, beside onnx's reference evaluator and ONNX Runtime. Where these two differ, or
one departs from rlx, rlx must give what the operator's text does, computed here in Python's integers; where the text is
silent, it is a choice, with its reason in CHOICES and a sentence in docs/onnx.md. The counts are written into
tests/onnx/data/integers.md; exit status 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx.reference import ReferenceEvaluator

import rlx
from rlx.errors import RlxError
from rlx.onnx.reader.elements import integer_range
from tests.onnx.sweep.integer_cases import Case, cases, ends

TABLE = Path(__file__).parent.parent / "data" / "integers.md"
Results = list[Any]

CHOICES = {
    "QuantizeLinear": "the quotient is computed in the type of the scale, as the text says, also of an i32",
    "ReduceLogSum": "logarithms of nothing and of negative sums become an end of the type, NaN becomes 0",
    "ReduceLogSumExp": "logarithms are computed in f64 and rounded toward 0; beyond the type they become its end",
    "Resize": "means of elements are computed in f64, rounded to nearest even and kept within the type",
    "Upsample": "means of elements are computed in f64, rounded to nearest even and kept within the type",
    "GridSample": "means of elements are computed in f64, rounded toward 0 and kept within the type",
    "ReduceL2": "norms of 64-bit integers are computed in f64 and rounded toward 0, and do not leave the type",
    "OneHot": "a depth of any integer type is taken; neither judge takes it",
    "Gemm": "with factors that are no whole numbers the sum is computed in f64, rounded toward 0, kept within the type",
    "MaxPool": "the indices are those of the greatest elements; onnx's reference compares with a zero of the padding",
}


def wrap(v: int, dtype: np.dtype) -> int:
    low, high = integer_range(dtype) or (0, 0)
    return (v - low) % (high - low + 1) + low


def clamp(v: float | int, dtype: np.dtype) -> int:
    low, high = integer_range(dtype) or (0, 0)
    return low if v <= low else high if v >= high else int(v)


def _rows(c: Case) -> list[list[int]]:
    x = c.feeds["x"]
    assert x is not None
    return [[int(v) for v in row] for row in x]


def _reduced(function: Callable[[list[int], np.dtype], int]) -> Callable[[Case], list[int]]:
    return lambda c: [function(row, c.dtype) for row in _rows(c)]


def _norm(row: list[int], dtype: np.dtype) -> int:
    return clamp(math.isqrt(sum(v * v for v in row)), dtype)


def _pow(c: Case) -> list[Any]:
    a, b = c.feeds["a"], c.feeds["b"]
    assert a is not None and b is not None
    if a.dtype.kind == "f":
        return [math.copysign(1.0, -1.0 if int(y) & 1 else 1.0) if x == -1 else float(x) ** int(y) if abs(x) <= 1 else
                (math.inf if int(y) > 2000 else float(x) ** int(y)) for x, y in zip(a, b, strict=True)]  # fmt: skip
    return [wrap(pow(int(x), int(y), 1 << 64), a.dtype) for x, y in zip(a, b, strict=True)]


def _shrink(c: Case) -> list[int]:
    x, bias, limit = c.feeds["x"], Fraction(c.attributes["bias"]), Fraction(c.attributes["lambd"])
    assert x is not None
    moved = [v + bias if v < -limit else v - bias if v > limit else 0 for v in map(int, x)]
    return [wrap(math.trunc(v), c.dtype) for v in moved]


def _gemm(c: Case) -> list[int] | None:
    alpha, beta = (c.attributes.get(n, 1.0) for n in ("alpha", "beta"))
    if not (alpha.is_integer() and beta.is_integer()):
        return None
    a, b, bias = (
        None if v is None else v.astype(object) for v in (c.feeds["a"], c.feeds["b"], c.feeds.get("c"))
    )
    y = int(alpha) * (a @ b) + (0 if bias is None else int(beta) * bias)  # type: ignore[operator]
    return [wrap(int(v), c.dtype) for v in y.reshape(-1)]


def _nearest(c: Case) -> list[int] | None:
    x = c.feeds["x"]
    if x is None or c.what not in ("nearest", "crop") or c.kind == "GridSample":
        return None
    return [int(v) for v in x.repeat(2, 2).repeat(2, 3).reshape(-1)]


# What the operator's text gives where the judges differ. Text that defines a sum, a product or a power says nothing
# of overflow: there rlx wraps, as docs/onnx.md says.
TEXT: dict[str, Callable[[Case], Sequence[Any] | None]] = {
    "ReduceSum": _reduced(lambda row, d: wrap(sum(row), d)),
    "ReduceProd": _reduced(lambda row, d: wrap(math.prod(row), d)),
    "ReduceL1": _reduced(lambda row, d: wrap(sum(map(abs, row)), d)),
    "ReduceSumSquare": _reduced(lambda row, d: wrap(sum(v * v for v in row), d)),
    "ReduceMean": _reduced(lambda row, d: math.trunc(Fraction(sum(row), len(row)))),
    "ReduceL2": _reduced(_norm),
    "Pow": _pow,
    "Shrink": _shrink,
    "Gemm": _gemm,
    "Resize": _nearest,
    "Upsample": _nearest,
    "Optional": lambda c: ends(c.dtype).tolist(),  # the reference gives a list
}


def _ran(run: Callable[[], Any]) -> Results | str:
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(run())
    except Exception as error:  # noqa: BLE001 - judges raise what they like
        return f"{type(error).__name__}: {error}"


def by_reference(c: Case) -> Results | str:
    def run() -> Any:
        (*made,) = ReferenceEvaluator(c.proto()).run(None, c.fed())
        return [np.asarray(m) for m in made]

    return _ran(run)


def by_onnxruntime(c: Case) -> Results | str:
    if c.crashes:
        return "may end the process"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    kind = onnxruntime.InferenceSession
    return _ran(
        lambda: kind(c.proto().SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
            None, c.fed()
        )
    )


def by_rlx(c: Case, device: str, constants: bool = False) -> Results | str:
    """What rlx gives; a str where it refuses. Other errors than its own are raised."""
    try:
        return list(
            rlx.onnx.load(c.proto(constants)).run({} if constants else c.fed(), device=device).values()
        )
    except RlxError as error:
        return f"{type(error).__name__}: {error}"


def same(a: Results, b: Results) -> bool:
    """Whether results are equal, floats to a few roundings. Integers of another type than rlx's, which the reference
    gives now and then, are wrapped to it."""
    return all(_same(np.asarray(x), np.asarray(y)) for x, y in zip(a, b, strict=True))


def _same(x: Any, y: Any) -> bool:
    if x.shape != y.shape:
        return False
    if integer_range(x.dtype) is None and x.dtype.kind != "b":
        near = {8: 1e-12, 4: 2e-6}.get(x.dtype.itemsize, 1e-2)
        return np.allclose(x.astype(float), y.astype(float), rtol=near, atol=near, equal_nan=True)
    if x.dtype != y.dtype and integer_range(y.dtype) is None:
        return False
    return np.array_equal(x, y.astype(x.dtype))


def by_text(c: Case, made: Results) -> bool:
    """Whether rlx's result is what the operator's text gives, where TEXT knows it."""
    want = TEXT[c.kind](c) if c.kind in TEXT else None
    if want is None:
        return False
    got = np.asarray(made[0])
    if got.dtype.kind == "f":
        return np.allclose(got.astype(float), np.array(want, float), rtol=2e-6)
    return [int(v) for v in got.reshape(-1)] == [int(v) for v in want]


COLUMNS = (
    "types",
    "cases",
    "as its judges",
    "as the reference alone",
    "as ONNX Runtime alone",
    "as the text",
    "chosen",
    "wrong",
)


def verdict(c: Case, device: str) -> tuple[str, str]:
    """The column that a case counts in, and what to say of it."""
    mine, folded = by_rlx(c, device), by_rlx(c, device, constants=True)
    if isinstance(mine, str):
        return "wrong", mine
    if isinstance(folded, str) or not same(mine, folded):
        return "wrong", f"computed {mine}, folded {folded}"
    judges = {"as the reference alone": by_reference(c), "as ONNX Runtime alone": by_onnxruntime(c)}
    agreed = [n for n, j in judges.items() if not isinstance(j, str) and same(mine, j)]
    there = [n for n, j in judges.items() if not isinstance(j, str)]
    if there and agreed == there:
        return "as its judges", ""
    if by_text(c, mine):
        return "as the text", ""
    if c.kind in CHOICES:
        return "chosen", ""
    if agreed and c.kind in TEXT_IS_THEIRS:
        return agreed[0], ""
    if not there and c.kind in ("Cast", "CastLike"):
        x, to = c.feeds["x"], np.asarray(mine[0]).dtype
        assert x is not None
        good = [int(v) for v in np.asarray(mine[0])] == [wrap(int(v), to) for v in x]
        return ("as the text", "") if good else ("wrong", f"{mine[0]}")
    return "wrong", f"rlx {mine}, judges {judges}"


TEXT_IS_THEIRS = ("Einsum",)  # exact sums that wrap, where ONNX Runtime goes through floats


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    onnxruntime.set_default_logger_severity(4)
    rows: dict[str, dict[str, Any]] = {}
    for c in cases():
        if options.only and c.kind not in options.only:
            continue
        row = rows.setdefault(c.kind, {**dict.fromkeys(COLUMNS, 0), "types": set()})
        column, what = verdict(c, options.device)
        row["types"].add(str(c.dtype))
        row["cases"] += 1
        row[column] += 1
        if column == "wrong":
            print(c.name, what, flush=True)
    total: dict[str, Any] = {n: sum(r[n] for r in rows.values()) for n in COLUMNS[1:]}
    total["types"] = set().union(*(r["types"] for r in rows.values()))
    lines = ["| Operator | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for kind, row in (*sorted(rows.items()), ("all", total)):
        lines.append(
            f"| {kind} | {len(row['types'])} | " + " | ".join(str(row[n]) for n in COLUMNS[1:]) + " |"
        )
    lines += ["", "Chosen:", "", *(f"- {kind}: {why}." for kind, why in sorted(CHOICES.items()))]
    print("\n".join(lines))
    if options.write:
        TABLE.write_text("\n".join(lines) + "\n")
    return 1 if total["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
