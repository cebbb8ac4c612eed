"""Row programs: the formula of an op that works on rows, written once for every device.

    def softmax(args, attrs):
        e = ex.call("exp", args[0] - row_max(args[0]))
        return (e / row_sum(e),)

A program is a tree of `Expr` for each output. Its values are of two classes: elements, which vary along a row, and
values of a row, which a reduction makes of elements. A tree may use both, and an output may be of either class. NumPy
evaluates a program (`rlx.ops.row_programs`, the reference), tensors do (the decomposition), and the CPU prints it as a
kernel (`rlx.backends.cpu.row_programs`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rlx.dtypes import DType, bool_
from rlx.ir.expr import Expr, linearize
from rlx.records import Record

# What an input holds: "element" one number for each element; "weight" one for each index of the layout's weight axes,
# the same in all rows; "row" one for each row.
Place = Literal["element", "weight", "row"]
REDUCTIONS = frozenset({"row_max", "row_min", "row_sum", "row_mean", "row_pick"})  # they make one value of a row
ROW_PRIMS = REDUCTIONS | {"less_mean", "row_at"}  # the last two make elements


class Layout(Record):
    """How the rows lie in memory: elements are seen in `shape`, of which the neighbouring `axes` run along a row. An
    input of weights has an element for each index of the axes `weights`."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]
    weights: tuple[int, ...] = ()

    def view(self, place: Place) -> tuple[int, ...]:
        """The shape in which an input of this place, or an output, broadcasts with the elements."""
        if place == "element":
            return self.shape
        kept = self.weights if place == "weight" else [i for i in range(len(self.shape)) if i not in self.axes]
        return tuple(n if i in kept else 1 for i, n in enumerate(self.shape))

    @property
    def length(self) -> int:
        """Elements of a row."""
        return math.prod(self.shape[i] for i in self.axes)


class Rows(Record):
    """The row program of an op.

    `rule` gives a tree for each output from the inputs, floats among them in the dtype that the op computes in, which
    is the first input's (f32 for halves). `layout` gives the rows from the first element input's shape and the
    attributes. `places` says what each input holds; those of optional inputs come last. `stored` says which input's
    dtype each output has: an input's by its position, the one that an attribute holds, or None, the dtype that the op
    computes in. `keepdims`: outputs of one value for each row have a row's axes, of length 1. `summed`: which outputs
    are sums over all rows, of the shape of weights, for which no GPU prints a kernel. `numbers`: the attributes that
    the rule reads as floats.
    """

    rule: Callable[[Sequence[Expr], Any], tuple[Expr, ...]]
    layout: Callable[[tuple[int, ...], Any], Layout]
    places: tuple[Place, ...] = ("element",)
    stored: tuple[int | str | None, ...] = (0,)
    keepdims: bool = True
    summed: tuple[bool, ...] = ()
    numbers: tuple[str, ...] = ()


def last_axis(shape: tuple[int, ...], attrs: Any) -> Layout:
    """Rows along the last axis, with weights for each of its places."""
    return Layout(shape, (len(shape) - 1,), (len(shape) - 1,))


def row_max(x: Expr) -> Expr:
    """The greatest element of each row; NaN where one is NaN, -inf where there is none."""
    return Expr("row_max", (x,), x.dtype)


def row_min(x: Expr) -> Expr:
    """The least element of each row; NaN where one is NaN, inf where there is none."""
    return Expr("row_min", (x,), x.dtype)


def row_sum(x: Expr) -> Expr:
    """The sum of each row, added up in blocks or pairs."""
    return Expr("row_sum", (x,), x.dtype)


def row_mean(x: Expr) -> Expr:
    """The mean of each row as one number. To subtract the mean from elements accurately, use `less_mean`."""
    return Expr("row_mean", (x,), x.dtype)


def less_mean(x: Expr) -> Expr:
    """Elements minus the mean of their row. The mean is kept as two numbers, high and low, as in
    `rlx.ops.numeric.centred`: rows far from 0 keep their precision, and rows of equal numbers give 0."""
    return Expr("less_mean", (x,), x.dtype)


def row_pick(x: Expr, index: Expr) -> Expr:
    """The element of each row at an index; an index out of range is clamped to the nearest."""
    return Expr("row_pick", (x, index), x.dtype)


def row_at(index: Expr) -> Expr:
    """Whether an element is the one that `row_pick` takes at this index."""
    return Expr("row_at", (index,), bool_)


def elements_of(trees: Sequence[Expr], places: Sequence[Place]) -> frozenset[Expr]:
    """The nodes of the trees that vary along a row."""
    varying: set[Expr] = set()
    for e in linearize(trees):
        if e.prim == "arg":
            assert isinstance(e.value, int)
            vary = places[e.value] != "row"
        else:
            # A device may have further reductions; their names also begin with "row_".
            reduces = e.prim.startswith("row_") and e.prim != "row_at"
            vary = e.prim in ("row_at", "index") or (not reduces and any(a in varying for a in e.args))
        if vary:
            varying.add(e)
    return frozenset(varying)


# Primitives whose result is NaN where an argument is.
_STRICT = frozenset("arg neg abs sqrt exp log add sub mul div recip max min".split())


def nan_is_summed(trees: Sequence[Expr]) -> bool:
    """Whether, wherever a row's max or min would be NaN, a sum makes each output NaN anyway: then the max or min need
    not propagate NaN."""
    nodes = linearize(trees)
    strict: dict[Expr, set[Expr]] = {}  # node -> the nodes whose NaN makes it NaN
    for e in nodes:
        strict[e] = {e}.union(*(strict[a] for a in e.args if e.prim in _STRICT))

    def summed(tree: Expr) -> bool:
        extremes = [e.args[0] for e in linearize([tree]) if e.prim in ("row_max", "row_min")]
        if tree.prim == "select" and not any(e.prim in ("row_max", "row_min") for e in linearize(tree.args[:1])):
            return all(summed(branch) for branch in tree.args[1:])
        sums = [strict[e.args[0]] for e in strict[tree] if e.prim == "row_sum"]
        return all(any(x in terms for terms in sums) for x in extremes)

    return all(summed(tree) for tree in trees)


def program_of(rows: Rows, dtypes: Sequence[DType], work: DType, attrs: Any) -> tuple[Expr, ...]:
    """The trees for inputs of these dtypes, in which every float is of the dtype `work`."""
    args = [Expr("arg", (), work if d.is_float else d, i) for i, d in enumerate(dtypes)]
    return rows.rule(args, attrs)
