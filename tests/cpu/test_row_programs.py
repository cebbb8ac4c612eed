"""Row programs as kernels of the CPU's engine, beside NumPy in float64: formulas of rows that are no known op's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice, program
from rlx.backends.cpu.machine import this_machine
from rlx.dtypes import as_dtype
from rlx.ir import NOT_DIFFERENTIABLE, REGISTRY, Attrs, Expr, TensorType
from rlx.ir import expr as ex
from rlx.ir.graph import apply_multi
from rlx.ir.rows import Layout, Rows, less_mean, row_at, row_max, row_mean, row_min, row_pick, row_sum
from rlx.ops.row_programs import row_op

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]


def _along(shape: tuple[int, ...], attrs: Attrs) -> Layout:
    return Layout(shape, (attrs["axis"],), (attrs["axis"],))


def _peak(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    return (args[0] / row_max(ex.call("abs", args[0])),)


def _scaled(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    """To 0 … 1, times a weight of each place, and the smallest."""
    x, weight = args
    low = row_min(x)
    return ((x - low) / (row_max(x) - low) * weight, low)


def _spread(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    """The variance and the sum of exponentials, of which the greatest is 1."""
    c = less_mean(args[0])
    return (row_mean(c * c), row_sum(ex.call("exp", args[0] - row_max(args[0]))))


def _picked(args: Sequence[Expr], attrs: Attrs) -> tuple[Expr, ...]:
    """The element of each row at an index, taken off all but that one."""
    x, index = args
    return (ex.call("select", row_at(index), x, x - row_pick(x, index)),)


def _along_axis(x: Array, index: Array, axis: int) -> Array:
    one = np.clip(index, 0, x.shape[axis] - 1)
    here = np.expand_dims(np.arange(x.shape[axis]), tuple(i for i in range(x.ndim) if i != axis)) == one
    return np.where(here, x, x - np.take_along_axis(x, one, axis))


def _ranged(x: Array, weight: Array, axis: int) -> list[Array]:
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    shape = tuple(n if i == axis else 1 for i, n in enumerate(x.shape))
    return [(x - low) / (high - low) * weight.reshape(shape), low]


FORMULAS: dict[str, tuple[Rows, Callable[..., Any]]] = {
    "peak": (Rows(_peak, _along), lambda x, axis: [x / np.abs(x).max(axis, keepdims=True)]),
    "scaled": (Rows(_scaled, _along, ("element", "weight"), (0, 0)), _ranged),
    "spread": (
        Rows(_spread, _along, ("element",), (0, 0)),
        lambda x, axis: [
            x.var(axis, keepdims=True),
            np.exp(x - x.max(axis, keepdims=True)).sum(axis, keepdims=True),
        ],
    ),
    "picked": (
        Rows(_picked, _along, ("element", "row")), lambda x, index, axis: [_along_axis(x, index, axis)],
    ),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    for name, (rows, _) in FORMULAS.items():
        def infer(types: Sequence[TensorType], attrs: Attrs, rows: Rows = rows) -> tuple[TensorType, ...]:
            x = types[0]
            row = TensorType(tuple(1 if i == attrs["axis"] else n for i, n in enumerate(x.shape)), x.dtype)
            return {1: (x,), 2: (x, row)}[len(rows.stored)] if rows.rule is not _spread else (row, row)

        row_op(f"test_{name}", "softmax", rows, "numpy", infer, NOT_DIFFERENTIABLE, single=False)
    yield
    for name in FORMULAS:
        del REGISTRY[f"test_{name}"]


def _arrays(name: str, shape: tuple[int, ...], axis: int, dtype: str) -> list[Array]:
    rng = np.random.default_rng(3)
    arrays = [rng.standard_normal(shape)]
    if name == "scaled":
        arrays.append(rng.standard_normal(shape[axis]))
    kind = ml_dtypes.bfloat16 if dtype == "bf16" else np.dtype({"f32": "f4", "f64": "f8", "f16": "f2"}[dtype])
    arrays = [a.astype(kind) for a in arrays]
    if name == "picked":
        index = rng.integers(-2, shape[axis] + 2, tuple(1 if i == axis else n for i, n in enumerate(shape)))
        arrays.append(index.astype(np.int32))
    return arrays


def _run(name: str, arrays: list[Array], axis: int) -> tuple[list[Array], bool]:
    """The outputs, and whether the engine computed them."""
    graph = rlx.Graph(name)
    ins = [graph.input(f"x{i}", a.shape, as_dtype(a.dtype)) for i, a in enumerate(arrays)]
    for i, t in enumerate(apply_multi(f"test_{name}", *ins, axis=axis)):
        graph.output(f"y{i}", t)
    with rlx.Session("cpu", threads=1, engine="compiled").compile(graph) as compiled:
        made = compiled.run({f"x{i}": a for i, a in enumerate(arrays)})
        return list(made.values()), "RowProgram" in str(compiled.report())


TOLERANCES = {"f32": 3e-6, "f64": 1e-13, "f16": 2**-10, "bf16": 2**-7}


@pytest.mark.parametrize("withheld", ["", "avx512f"])
@pytest.mark.parametrize("name", FORMULAS)
def test_any_formula(name: str, withheld: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = this_machine()
    assert machine is not None
    if withheld:
        monkeypatch.setattr(program, "this_machine", lambda: machine.without(withheld))
    shapes = (((5, 77), 1), ((3, 40, 21), 1)) if withheld else (((3, 1), 1), ((4, 129), 1), ((2, 9, 300), 1))
    for shape, axis in shapes:
        for dtype in ("f32", "bf16") if withheld else TOLERANCES:
            arrays = _arrays(name, shape, axis, dtype)
            wide = [a if a.dtype.kind == "i" else a.astype(np.float64) for a in arrays]
            with np.errstate(all="ignore"):
                wanted = FORMULAS[name][1](*wide, axis=axis)
            made, by_engine = _run(name, arrays, axis)
            assert by_engine or (name == "picked" and len(shape) == 3)  # a pick is of rows along memory
            for got, want in zip(made, wanted, strict=True):
                near = TOLERANCES[dtype] * max(1.0, float(np.nanmax(np.abs(want), initial=0.0)))
                np.testing.assert_allclose(got.astype(np.float64), want, TOLERANCES[dtype], near)


def test_a_nan_reaches_every_element_of_its_row_alone() -> None:
    for shape, axis in (((4, 70), 1), ((4, 70, 20), 1)):
        x = np.ones(shape, np.float32)
        x[2, 33] = np.nan
        (made,), _ = _run("peak", [x], axis)
        assert np.isnan(made[2]).all() and (made[[0, 1, 3]] == 1).all()


def test_outputs_over_their_inputs() -> None:
    """What a sweep stores in the output is no input that a later one reads."""
    x = np.random.default_rng(0).standard_normal((6, 90)).astype(np.float32)
    graph = rlx.Graph("in place")
    t = graph.input("x", x.shape)
    for axis in (0, 1):
        graph.output(f"shares{axis}", rlx.softmax(t * 2.0, axis))
        graph.output(f"logs{axis}", rlx.log_softmax(t * 3.0, axis))
    with rlx.Session("cpu", threads=1, engine="compiled").compile(graph) as compiled:
        made = compiled.run({"x": x})
    wide = x.astype(np.float64)
    for axis in (0, 1):
        for name, scaled in ((f"shares{axis}", wide * 2), (f"logs{axis}", wide * 3)):
            away = scaled - scaled.max(axis, keepdims=True)
            total = np.exp(away).sum(axis, keepdims=True)
            want = np.exp(away) / total if name.startswith("shares") else away - np.log(total)
            np.testing.assert_allclose(made[name], want, 1e-5, 1e-5)
