"""What the errors of an op are measured against: the size of the terms that it adds up, where results may cancel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rlx.conformance.record import record_of
from rlx.ir import Attrs, get_op
from rlx.ops.numeric import Array

F64 = npt.NDArray[np.float64]


def term_scale(op: str, inputs: Sequence[Array], attrs: Attrs) -> F64 | None:
    """√(Σ|terms|²) of each output element; None where errors are measured against the result."""
    record = record_of(op)
    if record is None or record.terms is None:
        return None
    with np.errstate(all="ignore"):
        wide: list[Any] = [a if a.dtype == np.bool_ else a.astype(np.float64) for a in inputs]
        return np.asarray(np.minimum(record.terms(wide, attrs), np.finfo(np.float64).max))


def free(op: str, inputs: Sequence[Array], attrs: Attrs, top: float) -> npt.NDArray[np.bool_] | None:
    """Where the order of partial sums decides whether they overflow (`top` is the largest number they may be): the
    result is then the right one, infinite or NaN. None where an op leaves no such choice: sums, means, products and
    running ones are right in every order."""
    record = record_of(op)
    if record is None or record.free is None:
        return None
    return record.free(inputs, attrs, top)


def over_squares(op: str) -> Callable[[Sequence[Array], Attrs], F64]:
    """√(Σ (a·b)²) of an op that adds up products: the same op on squares."""

    def terms(inputs: Sequence[Array], attrs: Attrs) -> F64:
        plain = {**attrs, "activation": None} if "activation" in attrs else dict(attrs)
        made: Any = get_op(op).reference(*(a * a for a in inputs), **plain)
        return np.asarray(np.sqrt(made))

    return terms
