"""Judges (NumPy's einsum) and gradient cases of the matrix product."""

from __future__ import annotations

import numpy as np

from rlx import ops
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Array, Judge, activated, common
from tests.outside import outside


def _matmul(*inputs: Array, transpose_a: bool, transpose_b: bool, activation: str | None) -> Array:
    a, b = common(*inputs[:2])
    left, right = ("...ki" if transpose_a else "...ik"), ("...jk" if transpose_b else "...kj")
    with np.errstate(all="ignore"):
        out = np.einsum(f"{left},{right}->...ij", a, b, optimize=False)
        out = out + inputs[2].astype(out.dtype) if len(inputs) == 3 else out
    if activation is None:
        return np.asarray(out)
    torch = outside("torch")
    return np.asarray(activated(torch, activation, torch.from_numpy(np.array(out))).numpy())


JUDGES: dict[str, Judge] = {
    "numpy.matmul": _matmul,
}
GRADIENTS: Gradients = {
    "matmul": [
        (ops.matmul, [(3, 4), (4, 5)], None),
        (lambda a, b: ops.matmul(a, b, transpose_a=True), [(4, 3), (4, 5)], None),
        (lambda a, b: ops.matmul(a, b, transpose_b=True), [(2, 3, 4), (5, 4)], None),
        (lambda a, b: ops.matmul(a, b, transpose_a=True, transpose_b=True), [(4, 3), (2, 5, 4)], None),
        (lambda a, b: a @ b, [(4,), (2, 4, 3)], None), (lambda a, b: a @ b, [(3, 4), (4,)], None),
        (lambda a, b: a @ b, [(4,), (4,)], None), (ops.matmul, [(2, 1, 3, 4), (5, 4, 2)], None),
        *[(lambda a, b, c, act=act: ops.matmul(a, b, c, activation=act), [(3, 4), (4, 5), (5,)], None)
          for act in (None, "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "relu")],
    ],
}  # fmt: skip
