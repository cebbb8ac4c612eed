"""Judges (complex numbers one by one) and gradient cases of rotary position embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlx import ops
from rlx.ir import Tensor
from rlx.ops.rope.table import rope_table
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge


def _rope(
    x: Array, cos: Array, sin: Array, *positions: Array,
    axis: int, offset: int, interleaved: bool, sections: int, inverse: bool,
) -> Array:  # fmt: skip
    """Multiplies each pair as a complex number by cos ± i sin of its position."""
    half = cos.shape[1]
    per = half // sections if sections else 0
    out = x.astype(np.float64)
    for at in np.ndindex(x.shape[:-1]):
        p = at[axis] + offset
        if positions:
            given = positions[0]
            place = {0: (), 1: (at[axis],), 2: (at[0], at[axis])}[given.ndim]
            p = int(given[place]) + offset + (at[axis] if given.ndim == 0 else 0)
        p = min(max(p, 0), len(cos) - 1)
        for k in range(half):
            first = 2 * k if interleaved else k // per * 2 * per + k % per
            second = first + 1 if interleaved else first + per
            turn = complex(cos[p, k], -sin[p, k] if inverse else sin[p, k])
            a, b = float(x[at][first]), float(x[at][second])
            if math.isfinite(a) and math.isfinite(b):
                z = complex(a, b) * turn
                out[at][first], out[at][second] = z.real, z.imag
            else:  # written out, since a product of complex numbers treats infinities by other rules
                with np.errstate(invalid="ignore"):
                    u, v, c, s = (np.float64(t) for t in (a, b, turn.real, turn.imag))
                    out[at][first], out[at][second] = u * c - v * s, v * c + u * s
    return out


def _positions(x: Tensor, values: Any) -> Tensor:
    """Positions that are not constant, so that they may lie outside the tables."""
    return x.graph.constant(np.asarray(values, np.int32)) + ops.cast(ops.sum(x) * 0.0, "i32")


def _tables(x: Tensor, rows: int, width: int) -> tuple[Tensor, Tensor]:
    cos, sin = rope_table(rows, width, dtype="f64")
    return x.graph.constant(cos), x.graph.constant(sin)


JUDGES: dict[str, Judge] = {
    "complex numbers turned place by place": _rope,
}
GRADIENTS: Gradients = {
    "rope": [
        (lambda x: ops.rope(x, *_tables(x, 7, 6), offset=2), [(2, 3, 5, 8)], None),
        (lambda x: ops.rope(x, *_tables(x, 9, 8), interleaved=True, axis=1, inverse=True), [(2, 4, 3, 8)], None),
        (lambda x: ops.rope(x, *_tables(x, 9, 8), _positions(x, [[1, 7, 2], [0, 0, 20]])), [(2, 3, 8)], None),
        (lambda x, c, s: ops.rope(x, c, s, sections=2), [(2, 3, 9), (3, 4), (3, 4)], None),
        (lambda x, c, s: ops.rope(x, c, s, offset=1, inverse=True), [(2, 3, 9), (6, 4), (6, 4)], None),
        (lambda x, c, s: ops.rope(x, c, s, _positions(x, [[1, 3, 2], [0, 0, 20]]), interleaved=True),
         [(2, 3, 9), (4, 3), (4, 3)], None),
        (lambda x, c, s: ops.rope(x, c, s, _positions(x, 1)), [(2, 3, 2, 8), (5, 4), (5, 4)], None),
    ],
}  # fmt: skip
