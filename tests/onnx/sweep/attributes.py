"""A sweep over the operators that onnx defines by functions, with negative, zero, tiny, huge and infinite attributes.

    python -m tests.onnx.sweep.attributes [--device cpu] [--write]

Each result is compared with the formula of the operator's text, computed in float64, for f16, f32 and f64: within a few
roundings of the type, signs of zero apart. Where the text gives no value, rlx must refuse; of coefficients that are no
finite numbers it may. The counts are written into
tests/onnx/data/attributes.md; exit status 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import rlx
from rlx.errors import ModelFormatError
from rlx.onnx.reader.elements import CODES
from tests.onnx.models import model, node

TABLE = Path(__file__).parent.parent / "data" / "attributes.md"
ODD = [
    -2.0,
    -0.5,
    0.0,
    1.5,
    2.0**-100,
    -(2.0**-100),
    1e-30,
    -1e-30,
    1e30,
    -1e30,
    math.inf,
    -math.inf,
    math.nan,
]
X = np.array(
    [
        -math.inf,
        -100.0,
        -2.0,
        -1.0,
        -0.25,
        -1e-3,
        -0.0,
        0.0,
        1e-3,
        0.25,
        1.0,
        1.5,
        2.0,
        60.0,
        math.inf,
        math.nan,
    ]
)
VALUES = np.linspace(-2, 2, len(X), dtype=np.float16)  # beside the gate of SwiGLU
DTYPES = [np.dtype(t) for t in ("float16", "float32", "float64")]
Array = np.ndarray
Formula = Callable[..., Array]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(0, x) + np.minimum(0, alpha * np.expm1(x / alpha))


def _shrink(x: Array, lambd: float, bias: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


def _selu(x: Array, alpha: float, gamma: float) -> Array:
    return np.where(x > 0, gamma * x, gamma * alpha * np.expm1(x))


FORMULAS: dict[str, tuple[tuple[str, ...], Formula]] = {
    "Celu": (("alpha",), _celu),
    "Elu": (("alpha",), lambda x, alpha: np.where(x < 0, alpha * np.expm1(x), x)),
    "Selu": (("alpha", "gamma"), _selu),
    "LeakyRelu": (("alpha",), lambda x, alpha: np.where(x < 0, alpha * x, x)),
    "HardSigmoid": (("alpha", "beta"), lambda x, alpha, beta: np.maximum(0, np.minimum(1, alpha * x + beta))),
    "ThresholdedRelu": (("alpha",), lambda x, alpha: np.where(x > alpha, x, 0)),
    "Shrink": (("lambd", "bias"), _shrink),
    "Swish": (("alpha",), lambda x, alpha: x * _sigmoid(alpha * x)),
    "SwiGLU": (("alpha",), lambda x, alpha: x * _sigmoid(alpha * x) * np.float64(VALUES)),
}
NO_VALUE: dict[str, Callable[..., bool]] = {
    "Celu": lambda alpha: alpha == 0 or not math.isfinite(alpha),  # x / alpha
}


def grid(names: tuple[str, ...]) -> Iterator[dict[str, float]]:
    """Every odd value of the first attribute, and of each other beside three of the first."""
    if len(names) == 1:
        yield from ({names[0]: v} for v in ODD)
        return
    for a, b in itertools.product(ODD, ODD):
        yield {names[0]: a, names[1]: b}


def cases() -> Iterator[tuple[str, np.dtype, dict[str, float]]]:
    for kind, (names, _) in FORMULAS.items():
        for dtype in DTYPES:
            for attributes in grid(names):
                yield kind, dtype, attributes


def expected(kind: str, dtype: np.dtype, attributes: dict[str, float]) -> Array | None:
    """The text's values in float64, of the inputs and attributes as the file holds them; None where it gives none."""
    held = {n: float(np.float32(v)) for n, v in attributes.items()}
    if kind in NO_VALUE and NO_VALUE[kind](**held):
        return None
    with np.errstate(all="ignore"):
        return FORMULAS[kind][1](X.astype(dtype).astype(np.float64), **held)


def computed(kind: str, dtype: np.dtype, attributes: dict[str, float], device: str) -> Array:
    x = X.astype(dtype)
    feeds = {"x": x, "z": VALUES.astype(dtype)} if kind == "SwiGLU" else {"x": x}
    one = node(kind, " ".join(feeds), "y", **attributes)
    proto = model(
        [one],
        {n: (list(a.shape), CODES[dtype]) for n, a in feeds.items()},
        {"y": (None, CODES[dtype])},
        opset=28,
    )
    return rlx.onnx.load(proto).run(feeds, device=device)["y"]


def wrong(kind: str, dtype: np.dtype, attributes: dict[str, float], device: str) -> str:
    """What differs; "" where nothing does."""
    want = expected(kind, dtype, attributes)
    try:
        got = computed(kind, dtype, attributes, device).astype(np.float64)
    except ModelFormatError as error:
        return "" if want is None or not all(map(math.isfinite, attributes.values())) else f"refused: {error}"
    if want is None:
        return f"{got.tolist()} where the text gives no value"
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        want = want.astype(dtype).astype(np.float64)
        step = np.maximum(np.abs(want) * float(info.eps), float(info.tiny)) * 8
        bound = float(info.max) * (1 - 4 * float(info.eps))
        big = (np.abs(got) >= bound) & (np.abs(want) >= bound) & (np.sign(got) == np.sign(want))
        good = big | (np.abs(got - want) <= step) | (got == want) | (np.isnan(got) & np.isnan(want))
    if good.all():
        return ""
    places = np.flatnonzero(~good)
    return "; ".join(f"x {X[i]}: {got[i]}, not {want[i]}" for i in places[:4])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    counts: dict[str, list[int]] = {}
    for kind, dtype, attributes in cases():
        row = counts.setdefault(kind, [0, 0, 0])
        row[0] += 1
        row[1] += expected(kind, dtype, attributes) is None
        what = wrong(kind, dtype, attributes, options.device)
        if what:
            row[2] += 1
            print(kind, dtype, attributes, what, flush=True)
    lines = ["| Operator | attributes × types | refused | wrong |", "|---|---|---|---|"]
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines += [f"| {kind} | {a} | {b} | {c} |" for kind, (a, b, c) in (*counts.items(), ("all", total))]
    print("\n".join(lines))
    if options.write:
        TABLE.write_text("\n".join(lines) + "\n")
    return 1 if total[2] else 0


if __name__ == "__main__":
    sys.exit(main())
