"""`python -m tests.exact_casts --device D [--numbers N]`: every cast to a float narrower than its source, of numbers on
and beside the ties of its rounding, against exact arithmetic. It prints a line for each pair of types, with the wrong
results, and fails if there are any. `exact_casts.txt` has what it printed with --numbers 2000.

Casts of rlx's own types run plain and inside a fused kernel, those of ONNX's through its operator Cast.
"""

from __future__ import annotations

import argparse
import sys
from fractions import Fraction
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

import rlx
from rlx.runtime import Session
from tests.devices import run


class Format(NamedTuple):
    """A float: the bits of its fraction, the exponents of its least normal and of its greatest number, and that number.
    `beyond` is what a greater one becomes where nothing saturates."""

    fraction: int
    least: int
    most: int
    greatest: Fraction
    beyond: float


def _format(fraction: int, least: int, most: int, missing: int = 0, beyond: float = np.nan) -> Format:
    """`missing` counts the numbers of the greatest exponent that stand for infinity or NaN instead."""
    greatest = (2 - Fraction(1 + missing, 2**fraction)) * Fraction(2) ** most
    return Format(fraction, least, most, greatest, beyond)


FORMATS = {
    "float64": _format(52, -1022, 1023, beyond=np.inf),
    "float32": _format(23, -126, 127, beyond=np.inf),
    "bfloat16": _format(7, -126, 127, beyond=np.inf),
    "float16": _format(10, -14, 15, beyond=np.inf),
    "float8_e4m3fn": _format(3, -6, 8, missing=1),
    "float8_e4m3fnuz": _format(3, -7, 7),
    "float8_e5m2": _format(2, -14, 15, beyond=np.inf),
    "float8_e5m2fnuz": _format(2, -15, 15),
    "float4_e2m1fn": _format(1, 0, 2, beyond=6.0),
}
SMALL = tuple(FORMATS)[4:]


def nearest(value: float | int, to: Format, saturate: bool = False) -> float:
    """The number of the format that is nearest to a number, ties to even, by exact arithmetic."""
    if value != value or value == 0:
        return float(value)
    sign = 1 if value > 0 else -1
    if value in (np.inf, -np.inf):
        return sign * (float(to.greatest) if saturate else to.beyond)
    exact = abs(Fraction(value))
    exponent = max(exact.numerator.bit_length() - exact.denominator.bit_length(), to.least)
    exponent -= exponent > to.least and exact < Fraction(2) ** exponent
    step = Fraction(2) ** (exponent - to.fraction)
    made = round(exact / step) * step  # of Fractions, to even
    if made > to.greatest:
        return sign * (float(to.greatest) if saturate else to.beyond)
    return sign * float(made)


def hard_numbers(source: np.dtype, to: Format, count: int, seed: int = 0) -> np.ndarray:
    """Numbers of the source on ties of the format's rounding, right beside them, and as far beside as an f32 resolves;
    the ends of both ranges; for floats zeros, infinities and NaN."""
    rng = np.random.default_rng(seed)
    whole = source.kind in "iu"
    bits = 8 * source.itemsize - (source.kind == "i")
    first = to.fraction + 2 if whole else max(to.least - to.fraction - 3, -1000)
    last = max(first + 1, min(bits, to.most + 2)) if whole else min(to.most + 2, 1000)
    made: list[float | int] = [0, 1]
    for exponent in rng.integers(first, last, count):
        digits = int(rng.integers(2**to.fraction, 2 ** (to.fraction + 1))) * 2 + int(rng.integers(0, 4) > 0)
        tie = Fraction(digits) * Fraction(2) ** (int(exponent) - to.fraction - 1)
        aside = tie * Fraction(int(rng.integers(-3, 4)), 2 ** int(rng.choice([24, 25, 26, 30, 40, 50])))
        number = tie + aside
        made.append(round(number) + int(rng.integers(-1, 2)) if whole else float(number))
    if whole:
        info = np.iinfo(source)
        made += [info.min, info.max, info.max - 1, info.max // 2 + 1, info.max // 2 + 2]
        made += [-v for v in made if source.kind == "i"]
        return np.array([v for v in made if info.min <= v <= info.max], source)
    greatest = float(min(to.greatest, Fraction(2) ** 1000))
    end = greatest + 2.0 ** (to.most - to.fraction - 1)  # the tie between it and what would follow it
    made += [greatest, end, np.nextafter(end, 0), np.nextafter(end, np.inf), 2.0**1000, 2.0**-1000, np.inf, np.nan]
    with np.errstate(over="ignore"):
        return np.array([*made, *(-v for v in made)], source)


def without_subnormals(x: np.ndarray) -> np.ndarray:
    """The numbers but those whose f32 or bf16 is subnormal, which a driver may take for 0."""
    wide = np.abs(x.astype(np.float64))
    return x[(wide == 0) | ~(wide < 2.0**-126)]


def wrong(made: np.ndarray, x: np.ndarray, to: Format, saturate: bool = False) -> np.ndarray:
    """The places where a cast of x gave another number than the nearest."""
    got = made.astype(np.float64)
    want = np.array([nearest(v, to, saturate) for v in x.tolist()])
    return np.flatnonzero(~((got == want) | (np.isnan(got) & np.isnan(want))))


def onnx_cast(
    source: np.dtype, to: np.dtype, x: np.ndarray, device: str, known: bool = False, **attributes: object
) -> np.ndarray:
    """What the operator Cast gives; `known` has x in the model, where the cast is computed while compiling."""
    codes = [TensorProto.STRING if t.kind == "O" else helper.np_dtype_to_tensor_dtype(t) for t in (source, to)]
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=codes[1], **attributes)]
    infos = [helper.make_tensor_value_info(n, c, [len(x)]) for n, c in zip("xy", codes, strict=True)]
    weights = [onnx.numpy_helper.from_array(x, "x")] if known else []
    graph = helper.make_graph(nodes, "g", [] if known else infos[:1], infos[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    made: np.ndarray = rlx.onnx.load(proto).run({} if known else {"x": x}, device=device)["y"]
    return made


OWN = [(np.dtype(s), t) for t in ("bfloat16", "float16") for s in ("float64", "int64", "int32")]
OF_ONNX = [
    *((np.dtype(s), t) for s in ("uint64", "uint32") for t in ("float64", "float32", "bfloat16", "float16")),
    *((np.dtype(s), t) for t in SMALL for s in ("float64", "float32", "int64", "uint64", "int32", "uint32")),
]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--engine", choices=["numpy", "compiled"])
    parser.add_argument("--numbers", type=int, default=20_000)
    asked = parser.parse_args()
    bad = 0

    def tell(source: np.dtype, name: str, ways: dict[str, np.ndarray], x: np.ndarray) -> None:
        nonlocal bad
        for way, places in ways.items():
            bad += len(places)
            first = f", {x[places[0]]!r} first" if len(places) else ""
            counts = f"{len(x)} numbers, {len(places)} wrong"
            print(f"{asked.device} | {source} to {name} | {way} | {counts}{first}", flush=True)

    session = Session(asked.device, engine=asked.engine)
    for source, name in OWN:
        to = FORMATS[name]
        x = hard_numbers(source, to, asked.numbers)
        x = x if session.info.preserves_subnormals else without_subnormals(x)
        kind = rlx.dtypes.as_dtype(np.dtype(getattr(ml_dtypes, name, name)))
        plain = run(session, lambda t, kind=kind: rlx.cast(t, kind), x)
        fused = run(session, lambda t, kind=kind: rlx.cast(rlx.cast(t, kind), "f64") * 0.5, x) * 2
        tell(source, name, {"plain": wrong(plain, x, to), "fused": wrong(fused, x, to)}, x)
    for source, name in OF_ONNX if asked.engine is None else ():
        to, kind = FORMATS[name], np.dtype(getattr(ml_dtypes, name, name))
        x = hard_numbers(source, to, asked.numbers)
        x = x[~np.isnan(x)] if name == SMALL[-1] else x  # which has no NaN
        ways = {
            f"saturate={k}": wrong(onnx_cast(source, kind, x, asked.device, saturate=k), x, to, k and name in SMALL)
            for k in (0, 1)
        }
        tell(source, name, ways, x)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
