"""The NumPy functions of operators behind a cut give what the operators' builders give, on random small inputs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.onnx.stages.block import Block, Values, _counted
from rlx.onnx.stages.counts import COUNTS
from rlx.onnx.stages.operators import FUNCTIONS
from tests.onnx.models import model, node

Array = np.ndarray[Any, Any]
Call = tuple[dict[str, Any], list[Any], int]  # attributes, inputs (None for one left out), the number of outputs
RNG = np.random.default_rng(3)


def real(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32) * 4


def whole(*shape: int, least: int = -9, most: int = 9) -> Array:
    return RNG.integers(least, most + 1, shape)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def one(value: Any, dtype: Any = np.int64) -> Array:
    return np.array(value, dtype)


def bools(*shape: int) -> Array:
    return RNG.random(shape) < 0.5


SPECIAL = np.float32([np.nan, np.inf, -np.inf, 0, -0.0, 1e30, -2.5, 2.5, 3e-40])
NUMBERS = [[real(3, 4), real(4)], [whole(2, 1, 3), whole(4, 1)], [SPECIAL, SPECIAL[::-1].copy()], [real(0, 4), real(4)]]
PLAIN = [[a] for a in (real(3, 4), whole(2, 3), SPECIAL)]
BOXES = np.concatenate([low := RNG.random((1, 30, 2)) * 9, low + RNG.random((1, 30, 2)) * 6], 2).astype(np.float32)
# For each operator (attributes, inputs) or just inputs; the number of outputs is 1 where the key has none.
CALLS: dict[str, list[Any]] = {
    **dict.fromkeys("Add Sub Mul Max Min Less LessOrEqual Greater GreaterOrEqual Equal".split(), NUMBERS),
    **{k: [[bools(3, 4), bools(4)]] for k in ("And", "Or", "Xor")},
    **dict.fromkeys(("Neg", "Abs"), PLAIN),
    **{k: [PLAIN[0], PLAIN[2]] for k in ("Floor", "Ceil", "Exp")},
    "Not": [[bools(3, 4)]],
    "Div": [*NUMBERS[::2], [whole(3, 4), whole(4, least=1)], [whole(9), -whole(9, least=1)], [whole(3), ints(1, 0, 2)]],
    "Mod": [
        [whole(40), whole(40, least=1)], [whole(40), -whole(40, least=1)],
        ({"fmod": 1}, [whole(40), -whole(40, least=1)]),
    ],
    "Clip": [
        [real(9), one(-1, np.float32), one(1, np.float32)], [real(9), None, one(0, np.float32)],
        [SPECIAL, one(0, np.float32)],
    ],
    "Where": [[bools(3, 1), real(4), real(3, 4)]],
    "Cast": [({"to": t}, [x]) for t in (1, 6, 7, 9, 11) for x in (real(9), whole(9), bools(9))],
    "Identity": PLAIN,
    "Shape": [[real(3, 4, 5)], ({"start": 1, "end": -1}, [real(3, 4, 5)]), ({"start": -2}, [real(3, 4)])],
    "Size": [[real(3, 4)], [real(0, 4)]],
    "Unsqueeze": [[real(3, 4), ints(0, -1)], [real(3), ints(1)]],
    "Squeeze": [[real(1, 3, 1), ints(0, -1)], [real(1, 3, 1), ints(2)], [real(1, 3, 1)]],
    "Reshape": [[real(3, 4), ints(2, -1)], [real(3, 4), ints(0, 2, 2)], ({"allowzero": 1}, [real(0, 4), ints(4, 0)])],
    "Flatten": [[real(2, 3, 4)], ({"axis": -1}, [real(2, 3, 4)]), ({"axis": 0}, [real(2, 3)])],
    "Transpose": [[real(2, 3, 4)], ({"perm": [1, 2, 0]}, [whole(2, 3, 4)])],
    "Concat": [({"axis": 1}, [real(2, 3), real(2, 0), real(2, 4)]), ({"axis": -2}, [whole(1, 3), whole(2, 3)])],
    "Split/2": [({"axis": 1}, [real(2, 6)]), ({"axis": -1, "num_outputs": 2}, [real(2, 6)]), [real(5, 2), ints(1, 4)]],
    "Slice": [
        [real(9, 8), ints(1, -3), ints(7, 99), ints(0, 1)], [real(9, 8), ints(-99), ints(6), ints(1), ints(2)],
        [real(9), ints(5), ints(2)], [real(9), ints(7), ints(-99), ints(0), ints(-2)],
    ],
    "Expand": [[real(3, 1), ints(2, 1, 4)], [whole(3), ints(1)]],
    "Tile": [[real(2, 3), ints(2, 1)], [real(2, 3), ints(0, 2)]],
    "ConstantOfShape": [[ints(2, 3)], ({"value": whole(1)}, [ints(2, 0)])],
    "Range": [[one(2), one(9), one(3)], [one(9), one(2), one(-2)], [one(3), one(3), one(1)]],
    "Gather": [
        [real(5, 3), ints(4, 0, -1)], ({"axis": -1}, [real(5, 3), whole(2, 2, least=-3, most=2)]), [real(5), one(2)],
    ],
    "GatherND": [[real(4, 5), whole(6, 2, least=-4, most=3)], [real(4, 5), whole(6, 1, least=-4, most=3)],
                 [real(4, 5), whole(2, 3, 2, least=0, most=3)]],
    "GatherElements": [({"axis": a}, [real(4, 5), whole(3, 5, least=-4, most=3)]) for a in (0, -2)]
    + [({"axis": 1}, [real(4, 5), whole(2, 7, least=-5, most=4)])],
    "NonZero": [[bools(9)], [bools(3, 4)], [whole(3, 4, least=0, most=1)], [SPECIAL], [one(3)]],
    "TopK/2": [[real(40), ints(k)] for k in (0, 1, 7, 40)]
    + [[np.float32(whole(n)), ints(k)] for n, k in ((40, 20), (90, 5))],
    **{
        f"Reduce{k}": [
            [real(3, 4), ints(1)], ({"keepdims": 0}, [whole(3, 4), ints(0, -1)]), [whole(3, 4)],
            ({"keepdims": 0}, [real(3)]),
        ]
        for k in ("Min", "Max", "Sum", "Prod")
    },
    "NonMaxSuppression": [
        [BOXES, RNG.random((1, 2, 30), np.float32), ints(k), np.float32([0.4]), np.float32([0.3])] for k in (0, 3, 30)
    ] + [({"center_point_box": 1}, [BOXES, RNG.random((1, 2, 30), np.float32), ints(9)])],
}  # fmt: skip
VERSIONED = {  # with the attributes that their older versions had in place of inputs
    "Unsqueeze": [({"axes": [0, 2]}, [real(3, 4)])], "Squeeze": [({"axes": [1]}, [real(3, 1)])],
    **{f"Reduce{k}": [({"axes": [1]}, [whole(3, 4)])] for k in ("Min", "Max", "Sum", "Prod")},
    "Split/2": [({"axis": 1}, [real(2, 6)])],
}  # fmt: skip


def calls(table: dict[str, list[Any]], name: str) -> Iterator[Call]:
    for key, found in table.items():
        if key.partition("/")[0] == name:
            for one_call in found:
                attrs, inputs = one_call if isinstance(one_call, tuple) else ({}, one_call)
                yield attrs, inputs, int(key.partition("/")[2] or 1)


@contextmanager
def one_step(name: str, call: Call, opset: int) -> Iterator[tuple[Block, Values]]:
    """A block of one node, and the values that it reads."""
    attrs, inputs, count = call
    given = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    asked = node(name, " ".join(f"x{i}" if a is not None else "_" for i, a in enumerate(inputs)),
                 " ".join(f"y{i}" for i in range(count)), **attrs)  # fmt: skip
    proto = model([node("Identity", "z", "y0")], {"z": [1]}, {"y0": [1]}, {}, opset=opset)
    with rlx.onnx.load(proto) as loaded, np.errstate(all="ignore"):
        yield (
            Block(loaded, [asked], dict.fromkeys(asked.output), "cpu", "f32", {}), Values(given, {}, []),
        )  # fmt: skip


def results(name: str, call: Call, opset: int) -> tuple[Any, Any]:
    """What the function gives, and what the builder gives or raises."""
    with one_step(name, call, opset) as (block, values):
        made = block._made(block.steps[0], values)
        try:
            return made, block._built(block.steps[0], values)
        except rlx.RlxError as error:
            return made, error


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_function_gives_what_the_builder_gives(name: str) -> None:
    known = 0
    for table, opset in ((CALLS, 18), (VERSIONED, 11)):
        for call in calls(table, name):
            made, built = results(name, call, opset)
            if made is NotImplemented:
                continue
            known += 1
            assert not isinstance(built, Exception), (call, built)
            for got, want in zip(made, built, strict=True):
                assert got.dtype == want.dtype and got.shape == want.shape, call
                np.testing.assert_allclose(got, want, rtol=3e-7 if name == "Exp" else 0, atol=0, err_msg=str(call))
    assert known, "no call that the function knows"


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_an_operator_on_counts_gives_what_it_gives_on_arrays(name: str) -> None:
    """On ranks 0 and 1, lengths up to 3, and numbers whose sums and products leave an i64."""
    values = [ints(), ints(1), ints(3, -1), ints(0, 1, -1), one(0), one(-2), one(1 << 62), ints(1 << 40, 1 << 40)]
    known = 0
    for opset in (11, 18):
        choices: list[dict[str, Any]] = [{}]
        if name in ("Gather", "Concat"):
            choices = [{"axis": 0}, {"axis": -1}, {"axis": 1}]
        elif name == "Shape" and opset == 18:
            choices = [{}, {"start": 1}]
        elif opset == 11 and ("queeze" in name or name.startswith("Reduce")):
            choices = [{"axes": [0]}, {"axes": [1]}]
        if name.startswith("Reduce"):
            choices += [{**a, "keepdims": 0} for a in choices]
        for attrs in choices:
            unary = name == "Shape" or "axes" in attrs
            with one_step(name, (attrs, values[: 1 if unary else 2], 1), opset) as (block, _):
                step = block.steps[0]
                for given in itertools.product(values, repeat=len(step.inputs)):
                    found = Values(dict(zip(step.inputs, given, strict=True)), {}, [])
                    got = _counted(step, found)
                    if got is not None:
                        known += 1
                        (made,) = block._made(step, found)
                        assert made.dtype == np.int64 and made.shape == np.shape(got), (attrs, given)
                        assert np.array_equal(made, got), (attrs, given)
    assert known, "no call that the function knows"
