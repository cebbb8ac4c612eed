"""Term sizes of running sums, scattered sums and logsumexp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rlx.ir import Attrs
from rlx.ops.cumulative import accumulated
from rlx.ops.numeric import Array
from rlx.ops.scatter import scatter_each, scatter_rows


def _cumsum(inputs: Sequence[Array], attrs: Attrs) -> Any:
    x = inputs[0].astype(np.float64)
    by = 2.0**-600 if x.size and np.nanmax(np.abs(x)) > 1e150 else 1.0  # f64 holds no squares of larger ones
    return np.sqrt(accumulated(np.add)((x * by) ** 2, **attrs)) / by


def _scattered(reference: Callable[..., Array]) -> Callable[[Sequence[Array], Attrs], Any]:
    def rule(inputs: Sequence[Array], attrs: Attrs) -> Any:
        indices, *values = inputs
        squares = [np.square(np.asarray(v, np.float64)) for v in values]
        if attrs["reduction"] == "add":
            return np.sqrt(reference(indices.astype(np.int64), *squares, **attrs))
        return np.zeros_like(reference(indices.astype(np.int64), *squares, **attrs))

    return rule


def _logsumexp(inputs: Sequence[Array], attrs: Attrs) -> Any:
    """max + log Σ exp(x - max): the two may cancel."""
    x = inputs[0].astype(np.float64)
    return np.abs(np.max(x, axis=attrs["axis"], keepdims=True, initial=-np.inf))


RULES: dict[str, Callable[[Sequence[Array], Attrs], Any]] = {
    "cumsum": _cumsum,
    "scatter": _scattered(scatter_rows),
    "scatter_elements": _scattered(scatter_each),
    "logsumexp": _logsumexp,
}
