"""Judges (NumPy) and gradient cases of padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlx import ops
from tests.ops.gradient_cases import Gradients
from tests.ops.judging import Judge

_PADS = ((1, 2), (3, 5))


def _pad(x: np.ndarray, *, pads: Any, mode: str, value: Any) -> np.ndarray:
    if x.ndim == 0:
        return x
    raw = x.view(np.uint16) if x.dtype.itemsize == 2 else x  # NumPy pads the dtypes of ml_dtypes as their bits
    if mode != "constant":
        return np.pad(raw, pads, mode=mode).view(x.dtype)
    with np.errstate(all="ignore"):
        fill = np.asarray(value).astype(x.dtype).view(raw.dtype)
    return np.pad(raw, pads, constant_values=fill).view(x.dtype)


JUDGES: dict[str, Judge] = {
    "numpy.pad": _pad,
}
GRADIENTS: Gradients = {
    "pad": [
        (lambda x: ops.pad(x, _PADS, value=2.0), [(3, 4)], None),
        (lambda x: ops.pad(x, ((0, 0), (-1, 2)), "constant"), [(3, 4)], None),
        *((lambda x, mode=mode: ops.pad(x, _PADS, mode), [(3, 4)], None)
          for mode in ("edge", "reflect", "symmetric", "wrap")),
        (lambda x: ops.pad(x, ((0, 0), (9, 4)), "reflect"), [(2, 3)], None),
    ],
}  # fmt: skip
