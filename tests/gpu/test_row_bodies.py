"""Kernels printed from row programs: formulas that are no known op's, by the CUDA text on the CPU, beside NumPy in
float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.kernel import KERNELS, ints
from rlx.backends.gpu.program.lowering import LOWERINGS
from rlx.backends.gpu.rules.rows import load_printed, row_kernels
from rlx.conformance.oracle import evaluate
from rlx.dtypes import bool_, f32
from rlx.errors import DTypeError, ShapeError
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Attrs, Expr, Graph, TensorType, apply
from rlx.ir import expr as ex
from rlx.ir.rows import (
    Layout,
    Rows,
    last_axis,
    less_mean,
    nan_is_summed,
    row_at,
    row_max,
    row_mean,
    row_min,
    row_pick,
    row_sum,
)
from rlx.ops.row_programs import row_op
from tests.gpu import cuda_host
from tests.gpu.lowered import Array, close, outputs

pytestmark = pytest.mark.skipif(cuda_host.compiler() is None, reason="no C++ compiler here")


def _along(shape: tuple[int, ...], attrs: Attrs) -> Layout:
    return Layout(shape, (attrs["axis"],))


def _weights_along(shape: tuple[int, ...], attrs: Attrs) -> Layout:
    return Layout(shape, (attrs["axis"],), (attrs["axis"],))


def _peak(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    return (args[0] / row_max(ex.call("abs", args[0])),)


def _ranged(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    """To 0 … 1, and the smallest."""
    low = row_min(args[0])
    return ((args[0] - low) / (row_max(args[0]) - low), low)


def _shares(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    """exp(x) over its mean, less exp(x) over the sum of its square: two reductions in one sweep, both read after."""
    e = ex.call("exp", args[0])
    return (e / row_mean(e) - e / row_sum(e * e),)


def _picked(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    """The element of each row at an index, taken off all but that one, times an attribute."""
    x, index = args
    factor = ex.cast(attrs["times"], x.dtype) if isinstance(attrs["times"], Expr) else attrs["times"]
    return (ex.call("select", row_at(index), x, x - row_pick(x, index)) * factor,)


def _weighed(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    """The sum of two inputs less its mean, over the greatest, times a weight, plus one where there is one; and the sum,
    where it is asked for."""
    total = args[0] + args[1]
    c = less_mean(total)
    y = c / row_max(ex.call("abs", c)) * args[2]
    y = y + args[3] if len(args) > 3 else y
    return (total, y) if attrs["keep"] else (y,)


def _of_ranged(x: Array, axis: int) -> list[Array]:
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    return [(x - low) / (high - low), low]


def _of_shares(x: Array, axis: int) -> list[Array]:
    e = np.exp(x)
    return [e / e.mean(axis, keepdims=True) - e / (e * e).sum(axis, keepdims=True)]


def _of_picked(x: Array, index: Array, axis: int, times: int) -> list[Array]:
    one = np.clip(index, 0, x.shape[axis] - 1)
    here = np.arange(x.shape[axis]) == one
    return [np.where(here, x, x - np.take_along_axis(x, one, axis)) * times]


def _of_weighed(x: Array, other: Array, *weights: Array, axis: int, keep: bool) -> list[Array]:
    total = x + other
    c = total - total.mean(axis, keepdims=True)
    y = c / np.abs(c).max(axis, keepdims=True)
    across = [w.reshape([-1 if i == axis else 1 for i in range(x.ndim)]) for w in weights]
    y = y * across[0] + (across[1] if len(across) > 1 else 0)
    return [total, y] if keep else [y]


FORMULAS: dict[str, tuple[Rows, str, Callable[..., list[Array]]]] = {
    "peak": (Rows(_peak, _along), "x -> y", lambda x, axis: [x / np.abs(x).max(axis, keepdims=True)]),
    "ranged": (Rows(_ranged, _along, stored=(0, 0)), "x -> y low", _of_ranged),
    "shares": (Rows(_shares, _along), "x -> y", _of_shares),
    "picked": (Rows(_picked, last_axis, ("element", "row")), "x index:i32 -> y", _of_picked),
    "weighed": (
        Rows(_weighed, _weights_along, ("element", "element", "weight", "weight"), (0, 0)),
        "x other gamma:W beta:W? -> total? y", _of_weighed,
    ),
}


@pytest.fixture(autouse=True)
def _declared() -> Iterator[None]:
    before = set(KERNELS)
    for name, (rows, args, _) in FORMULAS.items():

        def infer(types: Sequence[TensorType], attrs: Attrs, rows: Rows = rows) -> tuple[TensorType, ...]:
            x = types[0]
            if "keep" in attrs:
                return (x, x) if attrs["keep"] else (x,)
            row = TensorType(tuple(1 if i == attrs["axis"] else n for i, n in enumerate(x.shape)), x.dtype)
            return (x, row)[: len(rows.stored)]

        row_op(f"test_{name}", "softmax", rows, "numpy", infer, NOT_DIFFERENTIABLE, single=False)
        picks = name == "picked"
        fixed = {"keep": True} if name == "weighed" else {}
        row_kernels(f"test_{name}", args, ints("times") if picks else (), attrs=fixed)
    yield
    for name in FORMULAS:
        del REGISTRY[f"test_{name}"], LOWERINGS[f"test_{name}"]
    for stem in set(KERNELS) - before:
        del KERNELS[stem]


def _compared(name: str, x: Array, axis: int, weights: int = 0, **more: object) -> None:
    rng = np.random.default_rng(5)
    inputs, attrs = [x], {"axis": axis} | more
    if weights:
        inputs.append(np.round(rng.standard_normal(x.shape) * 16).astype(np.float32) / 16)
        inputs += [rng.standard_normal(x.shape[axis]).astype(np.float32) for _ in range(weights)]
    if name == "picked":
        shape = tuple(1 if i == axis else n for i, n in enumerate(x.shape))
        inputs.append(np.random.default_rng(2).integers(-2, x.shape[axis] + 2, shape).astype(np.int32))
        attrs["times"] = 3
    made = outputs(f"test_{name}", inputs, attrs, "cuda")
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs]
    with np.errstate(all="ignore"):
        wanted = FORMULAS[name][2](*wide, **attrs)
    for i, want in enumerate(wanted):
        close(made[f"y{i}"], want)


@pytest.mark.parametrize("name", [name for name in FORMULAS if name != "weighed"])
@pytest.mark.parametrize("shape, axis", [((5, 77), 1), ((3, 1024), 1), ((2, 9001), 1), ((2, 40, 21), 1)])
def test_any_formula(name: str, shape: tuple[int, ...], axis: int) -> None:
    if name == "picked" and len(shape) == 3:
        return  # its rows lie along memory
    # Far from 0 and on one side of it, so that a place beyond a row shows in a sum and in a minimum.
    _compared(name, np.random.default_rng(3).standard_normal(shape).astype(np.float32) / 4 - 3, axis)


@pytest.mark.parametrize("weights, keep", [(1, False), (2, True)])
@pytest.mark.parametrize("shape", [(5, 77), (3, 1024), (2, 9001), (2, 40, 21)])
def test_weights_means_and_what_may_be_missing(shape: tuple[int, ...], weights: int, keep: bool) -> None:
    x = np.round(np.random.default_rng(3).standard_normal(shape) * 16).astype(np.float32) / 16 - 300  # sums are exact
    _compared("weighed", x, 1, weights, keep=keep)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_nan_reaches_its_row_alone(axis: int) -> None:
    x = np.random.default_rng(4).standard_normal((6, 6)).astype(np.float32)
    x[2, 3] = np.nan
    _compared("peak", x, axis)
    _compared("ranged", x, axis)


def test_a_record_alone_has_types_gradients_and_kernels() -> None:
    def rule(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
        x, weight = args
        return (x / (row_max(ex.call("abs", x)) + attrs["eps"]) * weight,)

    def peak(x: Any, weight: Any) -> Any:
        return x / (np.abs(x).max(-1, keepdims=True) + 0.5) * weight

    name, before = "test_alone", set(KERNELS)
    program = Rows(rule, last_axis, ("element", "weight"), numbers=("eps",))
    row_op(name, "softmax", program, "numpy", kernel=name, inplace=(0,))
    try:
        load_printed(REGISTRY[name])
        assert set(KERNELS) == {*before, name}
        x, weight = (np.random.default_rng(6).standard_normal(s).astype(np.float32) for s in ((5, 40), (40,)))
        close(outputs(name, [x, weight], {"eps": 0.5}, "cuda")["y0"], peak(x.astype(np.float64), weight))
        graph = Graph("slope")
        ins = [graph.input("x", x.shape), graph.input("weight", weight.shape)]
        slope = rlx.gradients(rlx.sum(apply(name, *ins, eps=0.5)), ins[1:])[0]
        made = evaluate(graph, {"x": x.astype(np.float64), "weight": weight.astype(np.float64)})[slope.id]
        np.testing.assert_allclose(made, peak(x.astype(np.float64), 1.0).sum(0), 1e-12)
        with pytest.raises(ShapeError, match=r"test_alone: input 1 is \(5,\); expected \(40,\), a value for each"):
            apply(name, ins[0], graph.input("few", (5,)), eps=0.5)
        with pytest.raises(DTypeError, match="test_alone: eps is 1; expected a float"):
            apply(name, *ins, eps=1)
    finally:
        del REGISTRY[name], LOWERINGS[name], KERNELS[name]


def test_an_extreme_may_lose_a_nan_that_a_sum_has() -> None:
    x, c = ex.arg(0, f32), ex.arg(1, bool_)
    top = row_max(x)
    total = ex.call("log", row_sum(ex.call("exp", x - top))) + top
    assert nan_is_summed([total]) and nan_is_summed([ex.call("select", c, 0.0, total)])
    assert not nan_is_summed([x / top]) and not nan_is_summed([total, top])
    assert not nan_is_summed([ex.call("select", ex.call("lt", top, 0.0), 0.0, total)])
