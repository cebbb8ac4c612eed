"""The size of the terms that lines with a bend add up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rlx.ir import Attrs
from rlx.ops.numeric import Array

F64 = npt.NDArray[np.float64]


def _line(inputs: Sequence[Array], attrs: Attrs) -> F64:
    """alpha·x + beta cancels where the line meets 0."""
    return np.asarray(np.abs(attrs["alpha"] * inputs[0]) + abs(attrs["beta"]))


def _swish(inputs: Sequence[Array], attrs: Attrs) -> F64:
    x = np.abs(inputs[0])
    return np.asarray(x * np.minimum(x / 6 + 0.5, 1.0))


RULES: dict[str, Callable[[Sequence[Array], Attrs], F64]] = {"hard_sigmoid": _line, "hard_swish": _swish}
