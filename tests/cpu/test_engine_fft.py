"""Fourier transforms of the compiled engine: many lines at once, for each length of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.machine import Machine
from rlx.conformance.oracle import evaluate
from rlx.ir import apply
from tests.cpu.processors import on_machines
from tests.cpu.test_engine_products import bound, close, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
LINES = 37


# The length, and the floats of a line before it is cut or filled.
@on_machines
@pytest.mark.parametrize("form", ["fft", "rfft", "irfft"])
@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(("n", "given"), [(4, 8), (400, 398), (420, 430), (360, 362), (6, 8), (1024, 1026)])
@pytest.mark.sample(12)
def test_lines_are_transformed_alike_however_work_is_cut(
    form: str, inverse: bool, n: int, given: int, machine: Machine
) -> None:
    x = np.random.default_rng(n).standard_normal((LINES, given)).astype(np.float32)
    x[3, 2] = np.nan  # which stays in its line; what it reaches there is not the same in all algorithms
    values = {"x": x if form == "rfft" else x.reshape(LINES, -1, 2)}
    graph = rlx.Graph("transform")
    y = apply(form, graph.input("x", values["x"].shape), n=n, inverse=inverse, scale=0.5)
    graph.output("y", y)
    found = []
    for pieces in (1, 3):
        found.append(np.zeros(y.shape, np.float32))
        run(bound(y.node, [values["x"]], found[-1:], machine, False), machine, pieces)
    once, parts = found
    assert np.array_equal(once, parts, equal_nan=True) and np.isnan(once[3]).any()
    rows = [i for i in range(LINES) if i != 3]
    assert close(once[rows], evaluate(graph, values)[y.id][rows])


@on_machines
def test_segments_of_signals_between_zeros(machine: Machine) -> None:
    rng = np.random.default_rng(0)
    values = {"x": rng.standard_normal((2, 1000)).astype(np.float32), "w": rng.random(200, np.float32)}
    graph = rlx.Graph("segments")
    ins = [graph.input(n, a.shape) for n, a in values.items()]
    y = apply("segment_spectra", *ins, hop=50, nfft=256, start=100, count=21)
    graph.output("y", y)
    once, parts = (np.zeros(y.shape, np.float32) for _ in range(2))
    for pieces, out in ((1, once), (3, parts)):
        run(bound(y.node, [*values.values()], [out], machine, False), machine, pieces)
    assert np.array_equal(once, parts)
    assert close(once, evaluate(graph, values)[y.id])
