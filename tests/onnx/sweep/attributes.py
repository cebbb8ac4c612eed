"""A sweep over the operators that onnx defines by functions, with negative, zero, tiny, huge and infinite attributes.

    python -m tests.onnx.sweep.attributes [--device cpu] [--write]

Each result is compared with the formula of the operator's text, computed in float64, for bf16, f16, f32 and f64 and
every version of the operator: within a few roundings of the type, signs of zero apart. Where the text gives no value,
rlx must refuse; of coefficients that are no finite numbers it may. The counts are written into
tests/onnx/data/attributes.md; exit status 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import ml_dtypes
import numpy as np

import rlx
from rlx.errors import ModelFormatError, UnsupportedOp
from rlx.onnx.reader.elements import CODES
from tests.onnx.models import model, node
from tests.onnx.sweep.attribute_cases import Case, each, held
from tests.onnx.sweep.attribute_cases import cases as others

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


def activations() -> Iterator[Case]:
    for kind, (names, formula) in FORMULAS.items():
        for opset, dtype in each(kind, 6):
            for attributes in grid(names):
                x = X.astype(dtype)
                feeds = {"x": x, "z": VALUES.astype(dtype)} if kind == "SwiGLU" else {"x": x}
                kept = {n: held(v) for n, v in attributes.items()}
                none = kind in NO_VALUE and NO_VALUE[kind](**kept)
                with np.errstate(all="ignore"):
                    want = None if none else formula(x.astype(np.float64), **kept)
                yield Case(kind, opset, feeds, attributes, want, 8)


def cases() -> Iterator[Case]:
    yield from activations()
    yield from others()


def computed(case: Case, device: str) -> Array:
    order = case.order or " ".join(case.feeds)
    one = node(case.kind, order, case.results, domain=case.domain, **case.attributes)
    proto = model(
        [one],
        {n: (list(a.shape), CODES[a.dtype]) for n, a in case.feeds.items()},
        dict.fromkeys(case.results.split()),
        opset=case.opset,
        domains=[case.domain] if case.domain else [],
    )
    for info in proto.graph.output:
        info.type.Clear()
    return rlx.onnx.load(proto).run(case.feeds, device=device)[case.results.split()[0]]


def wrong(case: Case, device: str) -> str:
    """What differs; "" where nothing does."""
    want = case.want
    numbers = [v for v in case.attributes.values() if isinstance(v, float)]
    try:
        got = computed(case, device)
    except (ModelFormatError, UnsupportedOp) as error:
        return "" if want is None or not all(map(math.isfinite, numbers)) else f"refused: {error}"
    if want is None:
        return f"{got.reshape(-1)[:4].tolist()} … where the text gives no value"
    if got.shape != want.shape:
        return f"is {got.shape}, not {want.shape}"
    dtype, flat = got.dtype, got.astype(np.float64).reshape(-1)
    with np.errstate(all="ignore"):
        want = want.astype(dtype).astype(np.float64).reshape(-1)
        if dtype.kind in "fV":
            info = ml_dtypes.finfo(dtype)
            eps, tiny, most = float(info.eps), float(info.tiny), float(info.max)
        else:
            eps, tiny, most = 0.0, 0.0, math.inf
        size = np.max(np.abs(want[np.isfinite(want)]), initial=0.0) if case.roundings > 8 else np.abs(want)
        step = np.maximum(size * eps, tiny) * case.roundings
        bound = most * (1 - 4 * eps)
        big = (np.abs(flat) >= bound) & (np.abs(want) >= bound) & (np.sign(flat) == np.sign(want))
        good = big | (np.abs(flat - want) <= step) | (flat == want) | (np.isnan(flat) & np.isnan(want))
    if good.all():
        return ""
    places = np.flatnonzero(~good)
    return "; ".join(f"element {i}: {flat[i]}, not {want[i]}" for i in places[:4])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", nargs="*")
    options = parser.parse_args()
    counts: dict[str, list[int]] = {}
    for case in cases():
        if options.only and case.kind not in options.only:
            continue
        row = counts.setdefault(case.kind, [0, 0, 0])
        row[0] += 1
        row[1] += case.want is None
        what = wrong(case, options.device)
        if what:
            row[2] += 1
            kinds = {n: (a.dtype.name, a.shape) for n, a in case.feeds.items()}
            print(case.kind, case.opset, kinds, case.attributes, what, flush=True)
    lines = ["| Operator | opsets × attributes × types | refused | wrong |", "|---|---|---|---|"]
    total = [sum(column) for column in zip(*counts.values(), strict=True)]
    lines += [f"| {kind} | {a} | {b} | {c} |" for kind, (a, b, c) in (*counts.items(), ("all", total))]
    print("\n".join(lines))
    if options.write:
        TABLE.write_text("\n".join(lines) + "\n")
    return 1 if total[2] else 0


if __name__ == "__main__":
    sys.exit(main())
