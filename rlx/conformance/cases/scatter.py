"""Conformance of ops that write elements at indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, InputSpec
from rlx.conformance.random_rules import MAX_ELEMENTS, Made, is_number, rule
from rlx.conformance.record import Conformance
from rlx.conformance.shapes import ALL, FLOATS, INDEXED, INTS, label, reach
from rlx.conformance.tolerances import BITS, EQUAL, NORM, Tolerance
from rlx.dtypes import DType, bool_, f32, i32, i64
from rlx.ir import Attrs, Tensor
from rlx.ops.numeric import Array
from rlx.ops.scatter import REDUCTIONS, scatter_each, scatter_rows

if TYPE_CHECKING:
    from rlx.conformance.random_graphs import Builder

Shape = tuple[int, ...]


_TOLERANCES = {"none": BITS, "min": EQUAL, "max": EQUAL, "add": NORM, "mul": NORM}


def _scatter(op: str, shared: bool) -> Iterator[Case]:
    """The cases of one op; with `shared` all lines use one list of indices, as in `scatter`."""

    def case(
        shape: Shape, m: int, axis: int, reduction: str, dtype: DType = f32, index: DType = i32,
        domain: str = "index", values: str = "normal", into: bool = True,
    ) -> Case:  # fmt: skip
        places = (*shape[:axis], m, *shape[axis + 1 :])
        own = (m,) if shared else places
        name = f"{reduction}-{dtype}-{index}-{label(shape)}-{m}-axis{axis}-{domain}-{values}"
        specs = [InputSpec(own, index, reach(index, domain, shape[axis])), InputSpec(places, dtype, values)]
        if into:
            specs.append(InputSpec(shape, dtype, values))
        attrs = {"axis": axis, "length": shape[axis], "reduction": reduction}
        tolerance: Tolerance = _TOLERANCES[reduction]
        return Case(op, name + ("" if into else "-zeros"), tuple(specs), attrs, tolerance)

    for i, (shape, m, axis) in enumerate(INDEXED):
        yield case(shape, m, axis, "none", index=i64, values="any")
        yield case(shape, m, axis, "add", domain="wild")
        yield case(shape, m, axis, "add", into=False)
        yield case(shape, m, axis, REDUCTIONS[i % 5], domain="wild", index=i64)
    for dtype in ALL:
        for index in (i32, i64):
            yield case((9, 12), 17, 0, "none", dtype, index, "wild", "any")
        yield case((9, 12), 17, 0, "none", dtype, values="any", into=False)
    for dtype in (*FLOATS, *INTS):
        values = "any" if dtype.is_int else "normal"
        for reduction in REDUCTIONS[1:]:
            yield case((5, 33), 17, 1, reduction, dtype, i64, "wild", values)
            yield case((9, 5), 40, 0, reduction, dtype, i32, "index", "ties")
    for dtype in FLOATS:
        for reduction in REDUCTIONS[1:]:
            yield case((9, 65), 20, 1, reduction, dtype, i32, "index", "holes")
    for index in (i32, i64):
        yield case((9, 4), 64, 0, "add", f32, index, "any")
        yield case((9, 4), 64, 0, "none", f32, index, "any")
    if shared:
        # More indices than one workgroup sorts: with few updates of each element, and with all updates of one.
        yield case((700, 2), 2500, 0, "add")
        yield case((700, 2), 2500, 0, "none", domain="wild", values="any")
        yield case((1, 2), 2100, 0, "add", values="large")
        attrs = {"axis": 1, "length": 6, "reduction": "add"}
        specs = (InputSpec((2, 3), i32, "index:6"), InputSpec((4, 2, 3, 5), f32), InputSpec((4, 6, 5), f32))
        yield Case(op, "add-f32-i32-2x3-4x6x5-axis1", specs, attrs, NORM)
        specs = (InputSpec((), i64, "index:6"), InputSpec((4, 5), f32), InputSpec((4, 6, 5), f32))
        yield Case(op, "add-f32-i64-scalar-4x6x5-axis1", specs, attrs, NORM)
    else:
        yield case((3, 2), 2500, 1, "add")


def _reduction(b: Builder, x: Tensor) -> str:
    result: str = b.choose(("none",) if x.dtype == bool_ else ("none", "none", "add", "mul", "min", "max"))
    return result


@rule("scatter", rough=True)
def _shared(b: Builder) -> Made:
    x = b.ranked(1)
    axis, m = b.below(x.ndim), b.below(6)
    indices = b.indices((m,), x.shape[axis])
    updates = b.leaf((*x.shape[:axis], m, *x.shape[axis + 1 :]), x.dtype)
    if b.chance(0.3) and is_number(x):
        return (ops.segment_sum(updates, indices, x.shape[axis], axis),)
    return (ops.scatter(x, indices, updates, axis, _reduction(b, x)),)


@rule("scatter_elements", rough=True)
def _single(b: Builder) -> Made:
    x = b.ranked(1)
    axis, m = b.below(x.ndim), 1 + b.below(5)
    shape = (*x.shape[:axis], m, *x.shape[axis + 1 :])
    # Some x are the result of another node, so that the op may work in place.
    into = ops.concat([x[:1], x[1:]], 0) if b.chance(0.5) else x
    updates = b.leaf(shape, x.dtype)
    return (ops.scatter_elements(into, b.indices(shape, x.shape[axis]), updates, axis, _reduction(b, x)),)


@rule("nd", rough=True)
def _nd(b: Builder) -> Made:
    x = b.ranked(1)
    q, m = 1 + b.below(x.ndim), 1 + b.below(4)
    indices = b.indices((m, q), min(x.shape[:q]))
    if b.chance(0.5) and x.size * m <= MAX_ELEMENTS:
        return (ops.gather_nd(x, indices),)
    return (ops.scatter_nd(x, indices, b.leaf((m, *x.shape[q:]), x.dtype), _reduction(b, x)),)


def _scattered(reference: Callable[..., Array]) -> Callable[[Sequence[Array], Attrs], Any]:
    def rule(inputs: Sequence[Array], attrs: Attrs) -> Any:
        indices, *values = inputs
        squares = [np.square(np.asarray(v, np.float64)) for v in values]
        if attrs["reduction"] == "add":
            return np.sqrt(reference(indices.astype(np.int64), *squares, **attrs))
        return np.zeros_like(reference(indices.astype(np.int64), *squares, **attrs))

    return rule


OPS = (
    Conformance("scatter", (partial(_scatter, "scatter", True),), (_shared, _nd), terms=_scattered(scatter_rows)),
    Conformance(
        "scatter_elements", (partial(_scatter, "scatter_elements", False),), (_single,), terms=_scattered(scatter_each)
    ),
)
