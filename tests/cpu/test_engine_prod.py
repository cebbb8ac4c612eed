"""Products of floats over axes, and transposed convolutions with few outputs, on the compiled engine."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.machine import Machine
from rlx.conformance.oracle import evaluate
from tests.cpu.processors import on_machines
from tests.cpu.test_engine_products import bound, close, floats, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]


def ran(y: rlx.Tensor, ins: list[Array], machine: Machine) -> Array:
    """The result of y's node, whose bits do not depend on the pieces in which steps run."""
    made = []
    for pieces in (1, 3):
        out = np.full(y.shape, np.nan).astype(y.dtype.np)
        run(bound(y.node, ins, [out], machine, False), machine, pieces)
        made.append(out)
    assert made[0].tobytes() == made[1].tobytes()
    return made[0]


@on_machines
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axes"), [((5, 203), 1), ((203, 21), 0), ((3, 70, 5, 40), (1, 3)), ((90_001,), 0)])
def test_products_that_leave_the_range_on_the_way(
    shape: tuple[int, ...], axes: Any, dtype: Any, machine: Machine
) -> None:
    """Half of the factors are huge, half tiny: any partial product may be out of range, the whole one is not."""
    size = 100.0 if dtype == np.float32 else 900.0
    mantissas = np.random.default_rng(1).uniform(1, 1.001, shape)
    powers = np.where(np.indices(shape).sum(0) % 2, size, -size)
    powers -= powers.sum(axes, keepdims=True) / np.prod([shape[a] for a in np.atleast_1d(axes)])
    x = np.ldexp(mantissas, np.round(powers).astype(np.int32)).astype(dtype)
    graph = rlx.Graph("product")
    y = rlx.prod(graph.input("x", shape, dtype), axis=axes)
    high, power = np.frexp(x.astype(np.float64))
    logs = np.log2(high.astype(np.longdouble)).sum(axes) + power.sum(axes)
    got = ran(y, [x], machine)
    wanted = np.exp2(logs)
    assert np.isfinite(wanted.astype(dtype)).all() and (wanted.astype(dtype) != 0).all()
    assert np.allclose(got.astype(np.longdouble) / wanted, 1, rtol=1e-6 if dtype == np.float32 else 1e-13)


@on_machines
@pytest.mark.parametrize("axis", [0, 1])
def test_products_of_f64_are_rounded_once(axis: int, machine: Machine) -> None:
    x = np.random.default_rng(2).uniform(0.5, 2, (203, 8) if axis == 0 else (8, 203))
    graph = rlx.Graph("rounded")
    got = ran(rlx.prod(graph.input("x", x.shape, "f64"), axis=axis), [x], machine)
    wanted = [float(math.prod(map(Fraction, row))) for row in (x.T if axis == 0 else x).tolist()]
    np.testing.assert_array_equal(got, wanted)


@on_machines
def test_factors_that_are_no_numbers(machine: Machine) -> None:
    x = np.full((6, 40), 1.5)
    x[0, 3], x[1, 4], x[2, 5], x[3, 6] = np.inf, np.nan, 0.0, -np.inf
    x[4, 7], x[4, 30] = 0.0, np.inf
    x[5, :20] = 5e-324
    for dtype in (np.float32, np.float64):
        graph = rlx.Graph("special")
        got = ran(rlx.prod(graph.input("x", x.shape, dtype), axis=1), [x.astype(dtype)], machine)
        assert np.array_equal(got, [np.inf, np.nan, 0, -np.inf, np.nan, 0], equal_nan=True)


@on_machines
@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 9, 11, 13), (9, 3, 4, 4), {"strides": 2, "pads": 1}),
        ((1, 5, 20), (5, 1, 7), {"strides": 3, "pads": 2, "dilations": 2}),
        ((2, 4, 4, 3, 2), (4, 2, 3, 2, 2), {"strides": 3, "pads": 2, "output_padding": 1}),
    ],
    ids=["image", "signal", "volume"],
)
def test_a_transposed_convolution_with_few_outputs(
    x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any], machine: Machine
) -> None:
    graph = rlx.Graph("few")
    given = {"x": floats(*x), "w": floats(*w), "b": floats(w[1])}
    y = rlx.conv_transpose(*(graph.input(n, a.shape) for n, a in given.items()), **attrs)
    graph.output("y", y)
    assert close(ran(y, [*given.values()], machine), evaluate(graph, given)[y.id])
