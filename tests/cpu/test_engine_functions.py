"""The compiled engine's own functions beside NumPy's in wider floats: errors, special values, lengths of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.formulas import headers
from rlx.backends.cpu.trees import PRINTED
from rlx.ir.expr import PRIMS
from tests.cpu.processors import machines
from tests.cpu.test_engine_products import bound, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
_RNG = np.random.default_rng(0)
_ULP = 1.5
_FUNCTIONS: dict[str, Any] = {
    "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "sinh": np.sinh, "cosh": np.cosh, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "atanh": np.arctanh, "pow": np.power, "atan2": np.arctan2,
    "cbrt": np.cbrt, "tanh": np.tanh, "asinh": np.arcsinh,
}  # fmt: skip
_WIDE: dict[str, Any] = {**_FUNCTIONS, "exp": np.exp}
_SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2.0, 3.0, 2.0**-126, -(2.0**-130), 2.0**-149, 3.4e38, -3.4e38,
    1e-8, -1e-8, 86, 88, 88.7, 89, 89.4, 90, -87, -88, -103, -104, 125, 127.9, 128, -126, -149, -150, 17, 16384,
]
_SPECIAL_WIDE = [
    *_SPECIAL, 2.0**-1022, 2.0**-1074, 1e-310, 1e300, -1e300, 707.9, 708, 709.7, 709.8, 710.4, 711, -708, -745, -746,
    1021, 1023.9, 1024, -1022, -1074, -1075, 1048575, 1048577,
]  # fmt: skip


def numbers(n: int, kind: type[np.floating[Any]] = np.float32) -> Array:
    """Floats of all magnitudes, near 0, near 1, near multiples of pi / 2; a few special ones alone in their vectors."""
    wide = kind is np.float64
    random = _RNG.integers(0, 1 << (64 if wide else 32), n, np.uint64 if wide else np.uint32).view(kind)
    special = np.array(_SPECIAL_WIDE if wide else _SPECIAL, kind)
    angles = _RNG.integers(-10_000, 10_000, n) * (np.pi / 2)
    span = 720 if wide else 130
    parts = [
        np.where(np.abs(random) < 1e15, random, 1), _RNG.standard_normal(n) * 3, 1 + _RNG.standard_normal(n) * 0.1,
        _RNG.uniform(-1, 1, n), _RNG.uniform(-span, span, n), angles, special,
    ]  # fmt: skip
    found = np.concatenate([np.asarray(p, kind) for p in parts])
    lonely = np.tile(kind(0.75), 64 * len(special))
    lonely[::64] = special
    return np.concatenate([found, lonely])


def test_the_functions_are_those_of_the_engine() -> None:
    own = {name.removesuffix("_any") for name in headers().texts if name.endswith("_any")}
    names = {"m": _FUNCTIONS, "d": _WIDE}
    assert own == {f"{c}_{name}{'_of' * (name == 'log2')}" for c, functions in names.items() for name in functions}


def test_the_table_of_primitives_is_that_of_the_headers() -> None:
    for letter, primitives in PRINTED.items():
        in_headers = {p for p in PRIMS if f"p_{p}_{letter}" in headers().texts}
        assert primitives == in_headers - {"cast", "index"}, letter


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_are_nearly_rounded_once(name: str) -> None:
    check(name, pairs(name, numbers(1 << 12)), _FUNCTIONS[name], np.float64)


@pytest.mark.parametrize("name", _WIDE)
@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 60, reason="long double is no wider than double here")
def test_functions_of_f64_are_nearly_rounded_once(name: str) -> None:
    x = numbers(1 << 12, np.float64)
    check(name, pairs(name, x), _WIDE[name], np.longdouble)


def pairs(name: str, x: Array) -> list[Array]:
    """The inputs of a function that are made of x: most bases of powers are positive, exponents near what overflows."""
    if name not in ("pow", "atan2"):
        return [x]
    if name == "atan2":
        return [x, _RNG.permutation(x)]
    base, exponent = np.where(_RNG.random(len(x)) < 0.9, np.abs(x), x), _RNG.permutation(x)
    with np.errstate(all="ignore"):
        most = np.finfo(x.dtype).maxexp * _RNG.uniform(-1, 1, len(x)) / np.log2(np.abs(base))
    usual = np.isfinite(most) & (_RNG.random(len(x)) < 0.7)
    return [base, np.where(usual, most, exponent).astype(x.dtype)]


def check(name: str, ins: list[Array], judge: Any, wide: type[np.floating[Any]]) -> None:
    """Errors within _ULP of `judge` in the wider dtype; infinities, NaN, signs of zeros; one result on all machines."""
    kind = ins[0].dtype
    graph = rlx.Graph("function")
    given = [graph.input(n, a.shape, rlx.dtypes.as_dtype(kind)) for n, a in zip("ab", ins, strict=False)]
    y = getattr(rlx, name)(*given)
    found = []
    for machine in machines():
        out = np.empty_like(ins[0])
        run(bound(y.node, ins, [out], machine, False), machine)
        found.append(out)
    with np.errstate(all="ignore"):
        wanted = judge(*(a.astype(wide) for a in ins))
        rounded = wanted.astype(kind)
        off = np.abs(found[0] - wanted) / np.spacing(np.maximum(np.abs(rounded), np.finfo(kind).tiny))
    special = ~np.isfinite(rounded)
    assert np.array_equal(found[0][special], rounded[special], equal_nan=True)
    assert off[~special].max() <= _ULP
    zeros = rounded == 0
    assert np.array_equal(np.signbit(found[0][zeros]), np.signbit(rounded[zeros]))
    assert all(np.array_equal(found[0], other, equal_nan=True) for other in found)
