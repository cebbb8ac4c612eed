"""Code that gradient cases share. A case is (function, shapes, a function applied to the normal random inputs), and
near a kink, fourth, the step of the finite difference. Where a family writes none for an op, they are derived from its
records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from rlx import ops
from rlx.conformance.case import Case, cases_of
from rlx.dtypes import f32
from rlx.ir import Attrs, Expr, Tensor, get_op
from rlx.ir import expr as ex
from rlx.ir.graph import apply_multi

Shape = tuple[int, ...]
Build = Callable[..., Tensor]
Prepare = Callable[[np.ndarray], np.ndarray]
Gradients = dict[str, list[Any]]
Ties = dict[str, tuple[Build, Callable[..., Any]]]

KINK = 1e-5  # a step that stays on one side of a kink


class GradientCase(NamedTuple):
    build: Build
    shapes: list[Shape]
    prepare: Prepare | None = None
    step: float = 1e-3

    def arrays(self, rng: np.random.Generator) -> list[np.ndarray]:
        """The inputs, in float64."""
        made = [rng.standard_normal(s) for s in self.shapes]
        return made if self.prepare is None else [np.asarray(self.prepare(a)) for a in made]


def positive(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 0.5


def apart(x: np.ndarray) -> np.ndarray:
    """Numbers of which no two are closer than the step of the difference, and none is near 0 or an integer."""
    return np.round(x * 7) / 7 + 1 / 14 + np.arange(x.size).reshape(x.shape) * 1e-3


def inside(x: np.ndarray) -> np.ndarray:
    """Numbers within (-1, 1)."""
    return np.tanh(x) * 0.9


def above_one(x: np.ndarray) -> np.ndarray:
    return np.abs(x) + 1.3


def off(x: np.ndarray) -> np.ndarray:
    """Numbers away from the kinks of every function here: 0, ±3, integers and their ratios."""
    return np.round(x * 5) / 5 + 0.0713 + np.arange(x.size).reshape(x.shape) * 1.7e-2


_KINKS = frozenset({"abs", "ceil", "floor", "max", "min", "round", "select", "sign", "trunc"})
_WITHIN: dict[str, Prepare] = {"positive": positive, "unit": inside, "near_one": above_one}
_LEAST = 12  # elements of the inputs
_SHAPES: dict[int, list[list[Shape]]] = {1: [[(3, 4)]], 2: [[(3, 4), (4,)], [(2, 1, 4), (3, 1)]]}


def derived(op: str) -> list[GradientCase]:
    """The gradient cases of an op that follow from its cases of floats, one for each value of its attributes.
    Inputs lie away from kinks and, for an elementwise op, in the domain of its first case and in shapes that broadcast;
    other ops get the shapes of their smallest cases. Raises: LookupError where no case suffices."""
    rule = get_op(op).expr
    first: dict[str, Case] = {}
    for case in cases_of(op) if rule is not None else sorted(cases_of(op), key=_size):
        if all(s.dtype == f32 for s in case.inputs) and (rule is not None or _size(case) >= _LEAST):
            first.setdefault(repr(case.attrs), case)
    made = []
    for case in first.values():
        if rule is None:
            made.append(GradientCase(partial(_applied, op, case.attrs), [s.shape for s in case.inputs], apart, KINK))
            continue
        tree = rule([ex.arg(i, s.dtype) for i, s in enumerate(case.inputs)], case.attrs)
        prepare = off if _KINKS & set(_primitives(tree)) else _WITHIN.get(case.inputs[0].domain)
        for shapes in _SHAPES[len(case.inputs)]:
            made.append(GradientCase(partial(_applied, op, case.attrs), shapes, prepare))
    if not made:
        raise LookupError(f"{op}: no case has float inputs alone; write its gradient cases in GRADIENTS of its family")
    return made


def _size(case: Case) -> int:
    return sum(math.prod(s.shape) for s in case.inputs)


def _applied(op: str, attrs: Attrs, *xs: Tensor) -> Tensor:
    """The op's first output for inputs that are shifted apart: a maximum of equal elements has no derivative."""
    return apply_multi(op, *(x + 0.0071 * i if i else x for i, x in enumerate(xs)), **attrs)[0]


def _primitives(tree: Expr) -> Iterator[str]:
    yield tree.prim
    for arg in tree.args:
        yield from _primitives(arg)


def one_zero(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[0, 1] = 0.0
    x[1, 0] = x[1, 2] = 0.0
    return x


def constant_indices(x: Tensor, values: Any) -> Tensor:
    return x.graph.constant(np.array(values, np.int64))


def varying_indices(x: Tensor, values: Any) -> Tensor:
    """Indices that are not constant, so that they may be out of range."""
    return constant_indices(x, values) + ops.cast(ops.sum(x) * 0.0, "i64")


def whole(outs: tuple[Tensor, ...]) -> Tensor:
    """A tensor that depends on every output."""
    total = outs[0]
    for i, t in enumerate(outs[1:]):
        total = total * 1.5 + ops.sum(ops.sin(t)) * (0.5 + i)
    return total
