"""Gradient cases of pad."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import rlx.ops as ops

Shape = tuple[int, ...]
_PADS = ((1, 2), (3, 5))

CASES: dict[str, list[tuple[Any, list[Shape], Callable[[np.ndarray], np.ndarray] | None]]] = {
    "pad": [
        (lambda x: ops.pad(x, _PADS, value=2.0), [(3, 4)], None),
        (lambda x: ops.pad(x, ((0, 0), (-1, 2)), "constant"), [(3, 4)], None),
        *((lambda x, mode=mode: ops.pad(x, _PADS, mode), [(3, 4)], None)
          for mode in ("edge", "reflect", "symmetric", "wrap")),
        (lambda x: ops.pad(x, ((0, 0), (9, 4)), "reflect"), [(2, 3)], None),
    ]
}  # fmt: skip
