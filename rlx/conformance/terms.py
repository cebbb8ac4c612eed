"""What the errors of an op are measured against: the size of the terms that it adds up, where results may cancel."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.ir import Attrs
from rlx.ops.attention.parts import heads_first
from rlx.ops.numeric import Array

F64 = npt.NDArray[np.float64]


def _sum(x: Array, attrs: Attrs) -> F64:
    """Of numbers whose squares f64 does not hold, of scaled ones."""
    by = 2.0**-600 if x.size and np.nanmax(np.abs(x)) > 1e150 else 1.0
    return np.asarray(np.sqrt(np.sum((x * by) ** 2, axis=attrs["axes"], keepdims=attrs["keepdims"])) / by)


def _mean(x: Array, attrs: Attrs) -> F64:
    count = int(np.prod([x.shape[i] for i in attrs["axes"]], dtype=np.int64))
    return _sum(x, attrs) / max(count, 1)


def _matmul(inputs: Sequence[Array], attrs: Attrs) -> F64:
    a, b = inputs[:2]
    a = np.swapaxes(a, -1, -2) if attrs["transpose_a"] else a
    b = np.swapaxes(b, -1, -2) if attrs["transpose_b"] else b
    squares = np.matmul(a * a, b * b)
    if len(inputs) == 3:
        squares = squares + inputs[2] ** 2
    return np.asarray(np.sqrt(squares))


def free(op: str, inputs: Sequence[Array], attrs: Attrs, top: float) -> npt.NDArray[np.bool_] | None:
    """Where the order of partial sums decides whether they overflow (`top` is the largest number they may be): the
    result is then the right one, infinite or NaN. None where an op leaves no such choice: sums, means, products and
    running ones are right in every order."""
    if op != "matmul" or not all(np.asarray(a).dtype.kind in "fV" for a in inputs):
        return None
    with np.errstate(all="ignore"):
        by = 2.0**-300  # beyond the range of f64 too
        wide = [np.abs(np.asarray(a).astype(np.float64)) * s for a, s in zip(inputs, (by, by, by * by), strict=False)]
        a = np.swapaxes(wide[0], -1, -2) if attrs["transpose_a"] else wide[0]
        b = np.swapaxes(wide[1], -1, -2) if attrs["transpose_b"] else wide[1]
        terms = np.matmul(a, b)
        reach = terms + wide[2] if len(wide) == 3 else terms
        return np.asarray(np.isfinite(reach) & (reach >= top * by * by))


def _attention(inputs: Sequence[Array], attrs: Attrs) -> F64:
    """A weighted mean of values is at most the largest of them."""
    tokens = attrs.get("tokens", "")
    q, _, v = heads_first(inputs, tokens)[:3]
    largest = np.max(np.abs(np.repeat(v, q.shape[1] // v.shape[1], axis=1)), axis=2, keepdims=True, initial=0)
    whole = np.broadcast_to(largest, q.shape)
    return np.asarray(np.swapaxes(whole, 1, 2) if "y" in tokens else whole)


_RULES: dict[str, Callable[[Sequence[Array], Attrs], F64]] = {
    "sum": lambda inputs, attrs: _sum(inputs[0], attrs),
    "mean": lambda inputs, attrs: _mean(inputs[0], attrs),
    "matmul": _matmul,
    "attention": _attention,
    # x·Φ(x) for x far below 0 is computed as x·(1 + erf): small beside x, not beside itself.
    "gelu": lambda inputs, attrs: np.abs(inputs[0]),
}
# Families with rules of their own: terms_<family>.py beside this file.
for _module in pkgutil.iter_modules([str(Path(__file__).parent)]):
    if _module.name.startswith("terms_"):
        _RULES.update(importlib.import_module(f"rlx.conformance.{_module.name}").RULES)


def term_scale(op: str, inputs: Sequence[Array], attrs: Attrs) -> F64 | None:
    """√(Σ|terms|²) of each output element; None where errors are measured against the result."""
    rule = _RULES.get(op)
    if rule is None:
        return None
    with np.errstate(all="ignore"):
        wide: list[Any] = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in inputs]
        return np.minimum(rule(wide, attrs), np.finfo(np.float64).max)
