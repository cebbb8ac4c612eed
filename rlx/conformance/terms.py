"""The magnitude that an op's errors are measured against: the size of its terms, where their sum may cancel."""

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


def order_dependent(op: str, inputs: Sequence[Array], attrs: Attrs, top: float) -> npt.NDArray[np.bool_] | None:
    """The elements for which the order of partial sums decides whether they overflow, that is, exceed `top`.

    Such a result may be the right one, infinite or NaN. None for ops without this freedom: sums, means, products and
    their running forms must be right in every order.
    """
    record = record_of(op)
    if record is None or record.order_dependent is None:
        return None
    return record.order_dependent(inputs, attrs, top)


def undecided(op: str, inputs: Sequence[Array], attrs: Attrs) -> npt.NDArray[np.bool_] | None:
    """The elements of the first output that may be any number, since a term is not finite (see `record`)."""
    record = record_of(op)
    return None if record is None or record.undecided is None else record.undecided(inputs, attrs)


def over_squares(op: str) -> Callable[[Sequence[Array], Attrs], F64]:
    """The `terms` of an op that sums products, √(Σ (a·b)²): the root of the same op on the squared inputs."""

    def terms(inputs: Sequence[Array], attrs: Attrs) -> F64:
        plain = {**attrs, "activation": None} if "activation" in attrs else dict(attrs)
        total: Any = get_op(op).reference(*(a * a for a in inputs), **plain)
        return np.asarray(np.sqrt(total))

    return terms
