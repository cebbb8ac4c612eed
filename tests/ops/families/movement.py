"""Judges (NumPy) and gradient cases of ops that move data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlx import ops
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge


def _slice(x: Array, *, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]) -> Array:
    picked = [np.arange(a, b, c) for a, b, c in zip(starts, stops, steps, strict=True)]
    return x[np.ix_(*picked)] if picked else x


JUDGES: dict[str, Judge] = {
    "numpy.reshape": lambda x, *, shape: np.reshape(x, shape),
    "numpy.transpose": lambda x, *, perm: np.transpose(x, perm),
    "numpy.broadcast_to": lambda x, *, shape: np.broadcast_to(x, shape),
    "numpy.ndarray.__getitem__": _slice,
    "numpy.concatenate": lambda *xs, axis: np.concatenate(xs, axis),
}
GRADIENTS: Gradients = {
    "reshape": [(lambda x: x.reshape(2, -1) * ops.exp(x.reshape(2, 6)), [(3, 4)], None)],
    "transpose": [(lambda x: ops.transpose(x, (2, 0, 1)), [(2, 3, 4)], None)],
    "expand": [(lambda x: ops.expand(x, (2, 3, 4)), [(3, 1)], None), (lambda x: ops.expand(x, (2, 2)), [()], None)],
    "slice": [(lambda x: x[1:, ::2], [(3, 4)], None), (lambda x: x[::-1, 3:0:-2], [(3, 4)], None),
              (lambda x: x[2, None, 1:3], [(3, 4)], None), (lambda x: x[:, 1:1], [(3, 4)], None),
              (lambda x: x[..., 1::3], [(2, 3, 8)], None)],
    "concat": [(lambda x, y: ops.concat([x, y, x], 1), [(3, 4), (3, 2)], None)],
}  # fmt: skip
