"""The compiled engine's own functions of f32 beside NumPy's in float64: errors, special values, lengths of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu.engine import choice
from rlx.backends.cpu.engine.formulas import headers
from tests.cpu.test_engine_products import bound, machines, run

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
    "cbrt": np.cbrt,
}  # fmt: skip
_SPECIAL = [
    0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, -0.5, 2.0, 3.0, 2.0**-126, -(2.0**-130), 2.0**-149, 3.4e38, -3.4e38,
    1e-8, -1e-8, 86, 88, 88.7, 89, 89.4, 90, -87, -88, -103, -104, 125, 127.9, 128, -126, -149, -150, 17, 16384,
]  # fmt: skip


def numbers(n: int) -> Array:
    """f32 of all magnitudes, near 0, near 1, near multiples of pi / 2; a few special ones alone in their vectors."""
    bits = _RNG.integers(0, 1 << 32, n, dtype=np.uint64).astype(np.uint32).view(np.float32)
    angles = _RNG.integers(-10_000, 10_000, n) * (np.pi / 2)
    parts = [
        np.where(np.abs(bits) < 1e15, bits, 1), _RNG.standard_normal(n) * 3, 1 + _RNG.standard_normal(n) * 0.1,
        _RNG.uniform(-1, 1, n), _RNG.uniform(-130, 130, n), angles, _SPECIAL,
    ]  # fmt: skip
    found = np.concatenate([np.asarray(p, np.float32) for p in parts])
    lonely = np.tile(np.float32(0.75), 64 * len(_SPECIAL))
    lonely[::64] = _SPECIAL
    return np.concatenate([found, lonely])


def test_the_functions_are_those_of_the_engine() -> None:
    own = {name.removesuffix("_any") for name in headers().texts if name.endswith("_any")}
    assert own == {f"m_{name}" if name != "log2" else "m_log2_of" for name in _FUNCTIONS}


@pytest.mark.parametrize("name", _FUNCTIONS)
def test_functions_are_nearly_rounded_once(name: str) -> None:
    x = numbers(1 << 12)
    ins = [x]
    if name in ("pow", "atan2"):
        first = np.where(_RNG.random(len(x)) < 0.9, np.abs(x), x) if name == "pow" else x
        ins = [first, _RNG.permutation(x)]
    graph = rlx.Graph("function")
    y = getattr(rlx, name)(*(graph.input(n, x.shape) for n, _ in zip("ab", ins, strict=False)))
    found = []
    for machine in machines():
        out = np.empty_like(x)
        run(bound(y.node, ins, [out], machine, False), machine)
        found.append(out)
    with np.errstate(all="ignore"):
        wanted = _FUNCTIONS[name](*(a.astype(np.float64) for a in ins))
        rounded = wanted.astype(np.float32)
        off = np.abs(found[0] - wanted) / np.spacing(np.maximum(np.abs(rounded), np.float32(2.0**-126)))
    special = ~np.isfinite(rounded)
    assert np.array_equal(found[0][special], rounded[special], equal_nan=True)
    assert off[~special].max() <= _ULP
    zeros = rounded == 0
    assert np.array_equal(np.signbit(found[0][zeros]), np.signbit(rounded[zeros]))
    assert all(np.array_equal(found[0], other, equal_nan=True) for other in found)
