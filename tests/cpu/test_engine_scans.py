"""Kernels of the compiled engine for recurrences: right for every length of vectors, and alike however work is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.backends.cpu import choice
from rlx.backends.cpu.machine import Machine
from rlx.conformance.oracle import evaluate
from rlx.dtypes import as_dtype
from rlx.ir.graph import apply_multi
from tests.cpu.processors import on_machines
from tests.cpu.test_engine_products import bound, close, run

pytestmark = pytest.mark.skipif(
    choice.why_not() is not None, reason=f"no compiled engine: {choice.why_not()}"
)
Array = npt.NDArray[Any]
_RNG = np.random.default_rng(0)

# Op, attributes, shapes of inputs; "-" before a name are factors that let states decay, "+" positive ones.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "one decay for each state": (
        "selective_scan", {"operands": ("D", "z", "state"), "softplus": True},
        {"x": (2, 19, 37), "delta": (2, 19, 37), "-a": (37, 21), "b": (2, 19, 1, 21), "c": (2, 19, 1, 21), "D": (37,),
         "z": (2, 19, 37), "state": (2, 37, 21)},
    ),
    "one decay for each head": (
        "selective_scan", {"operands": ("bias",), "softplus": True},
        {"x": (2, 19, 4, 18), "delta": (2, 19, 4), "-a": (4,), "b": (2, 19, 2, 33), "c": (2, 19, 2, 33), "bias": (4,)},
    ),
    "gradient of states": (
        "selective_scan_grad", {"operands": ("state",)},
        {"dy": (2, 35, 40), "dlast": (2, 40, 5), "x": (2, 35, 40), "+delta": (2, 35, 40), "-a": (40, 5),
         "b": (2, 35, 2, 5), "c": (2, 35, 2, 5), "state": (2, 40, 5)},
    ),
    "gradient of heads": (
        "selective_scan_grad", {"operands": ()},
        {"dy": (1, 35, 4, 36), "dlast": (1, 4, 36, 17), "x": (1, 35, 4, 36), "+delta": (1, 35, 4), "-a": (4,),
         "b": (1, 35, 2, 17), "c": (1, 35, 2, 17)},
    ),
    "delta rule": (
        "gated_delta_rule", {"operands": ("g", "state"), "scale": 0.3},
        {"q": (2, 9, 2, 21), "k": (2, 9, 2, 21), "v": (2, 9, 4, 18), "+beta": (2, 9, 4), "-g": (2, 9, 4),
         "state": (2, 4, 18, 21)},
    ),
    "gradient of the delta rule": (
        "gated_delta_rule_grad", {"operands": ("g",), "scale": 0.3},
        {"do": (2, 19, 4, 18), "dlast": (2, 4, 18, 21), "q": (2, 19, 2, 21), "k": (2, 19, 2, 21), "v": (2, 19, 4, 18),
         "+beta": (2, 19, 4), "-g": (2, 19, 4)},
    ),
    "causal convolution": (
        "causal_conv", {"operands": ("bias", "state"), "activation": "silu"},
        {"x": (2, 3, 37), "w": (37, 5), "bias": (37,), "state": (2, 4, 37)},
    ),
}  # fmt: skip


def given(name: str, shape: tuple[int, ...]) -> Array:
    x = _RNG.standard_normal(shape).astype(np.float32) * np.float32(0.3)
    return -np.abs(x) if name[0] == "-" else np.abs(x) if name[0] == "+" else x


@on_machines
@pytest.mark.parametrize("case", CASES)
@pytest.mark.sample(7)
def test_a_recurrence_is_right_and_does_not_depend_on_its_pieces(case: str, machine: Machine) -> None:
    op, attrs, shapes = CASES[case]
    graph = rlx.Graph(op)
    values = {name.strip("+-"): given(name, shape) for name, shape in shapes.items()}
    ins = [graph.input(name, x.shape, as_dtype(x.dtype)) for name, x in values.items()]
    made = apply_multi(op, *ins, **attrs)
    for i, t in enumerate(made):
        graph.output(f"y{i}", t)
    found = []
    for pieces in (1, 3):
        outs = [np.full(t.shape, np.nan, np.float32) for t in made]
        run(bound(made[0].node, [*values.values()], outs, machine, pieces == 3), machine, pieces)
        found.append(outs)
    wanted = evaluate(graph, values)
    for once, parts, t in zip(*found, made, strict=True):
        assert np.array_equal(once, parts)
        assert close(once, wanted[t.id])


@on_machines
def test_zeros_before_a_sequence_are_multiplied(machine: Machine) -> None:
    """An infinite weight makes NaN of them, as on every device."""
    x, w = given("x", (1, 4, 37)), given("w", (37, 3))
    w[5, 0] = np.inf
    graph = rlx.Graph("start")
    ins = [graph.input("x", x.shape), graph.input("w", w.shape)]
    made = apply_multi("causal_conv", *ins, operands=(), activation=None)
    outs = [np.zeros(t.shape, np.float32) for t in made]
    run(bound(made[0].node, [x, w], outs, machine, False), machine, 1)
    assert np.isnan(outs[0][0, :2, 5]).all() and np.isnan(outs[0]).sum() == 2
