"""Graphs deeper than Python's stack: every stage iterates over nodes, none recurses for each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.ir import verify
from rlx.ops.interpret import evaluate

LIMIT = 400  # of Python's stack in these tests: less than half of the usual one, so that smaller graphs are deeper
DEPTH = LIMIT + 50
Step = Callable[[rlx.Tensor, int], rlx.Tensor]

CHAINS: dict[str, Step] = {
    "elementwise": lambda t, i: rlx.sin(t) if i % 2 else t * 0.5,
    "shared parts": lambda t, i: t * t if i % 3 else rlx.tanh(t),
    "branches that meet": lambda t, i: rlx.where(t > 0, t, -t),
    "views": lambda t, i: rlx.reshape(t, (2, 2) if i % 2 == 0 else (4,)),
    "casts": lambda t, i: rlx.cast(t, "f16" if i % 2 == 0 else "f32"),
    "row sums": lambda t, i: t - rlx.mean(t) * 0.5,
    "slices": lambda t, i: rlx.concat([t[1:], t[:1]], 0),
}


@pytest.fixture(autouse=True)
def small_stack() -> Iterator[None]:
    usual = sys.getrecursionlimit()
    sys.setrecursionlimit(LIMIT)
    yield
    sys.setrecursionlimit(usual)


def chain(step: Step) -> rlx.Graph:
    g = rlx.Graph("deep")
    t = g.input("x", (4,))
    for i in range(DEPTH):
        t = step(t, i)
    g.output("y", t * 1.0)
    return g


@pytest.mark.parametrize("kind", list(CHAINS))
@pytest.mark.full(kind=CHAINS.keys() - {"elementwise", "branches that meet"})
@pytest.mark.late
def test_chains(kind: str, tmp_path: Path) -> None:
    x = np.float32([0.5, -1, 2, 0.25])
    g = chain(CHAINS[kind])
    verify(g)
    assert len(str(g).splitlines()) > DEPTH
    expected = evaluate(g, {"x": x})[g.outputs["y"].id]
    for optimize in (True, False):
        with rlx.Session("cpu").compile(g, optimize=optimize) as exe:
            np.testing.assert_allclose(exe.run({"x": x})["y"], expected, rtol=1e-3, atol=1e-5)
            assert str(exe.report())
            str(exe.program)


def test_gradients_of_a_chain() -> None:
    g = chain(lambda t, i: rlx.sin(t) if i % 2 else t + 0.1)
    x = g.inputs["x"]
    (found,) = gradients(rlx.sum(g.outputs["y"]), [x])
    g.output("d", found)
    feed = np.float32([0.5, -1, 2, 0.25])
    value, slope = feed.astype(np.float64), np.ones(4)
    for i in range(DEPTH):
        slope *= np.cos(value) if i % 2 else 1
        value = np.sin(value) if i % 2 else value + 0.1
    with rlx.Session("cpu").compile(g) as exe:
        np.testing.assert_allclose(exe.run({"x": feed})["d"], slope, rtol=1e-3, atol=1e-30)


def test_a_chain_inside_a_loop() -> None:
    g = rlx.Graph("deep")
    x = g.input("x", (4,))

    def step(c: rlx.Tensor, row: rlx.Tensor) -> tuple[rlx.Tensor, rlx.Tensor]:
        for i in range(DEPTH):
            c = rlx.sin(c) if i % 2 else c + row
        return c, c

    last, _ = rlx.scan(step, x, g.constant(np.full((2, 4), 0.1, np.float32)))
    g.output("d", gradients(rlx.sum(last), [x])[0])
    g.output("y", last)
    feed = np.float32([0.5, -1, 2, 0.25])
    expected = feed.astype(np.float64)
    for i in range(2 * DEPTH):
        expected = np.sin(expected) if i % 2 else expected + 0.1
    with rlx.Session("cpu").compile(g) as exe:
        np.testing.assert_allclose(exe.run({"x": feed})["y"], expected, rtol=1e-4)


def test_a_wide_graph() -> None:
    """Thousands of branches added in pairs."""
    g = rlx.Graph("wide")
    x = g.input("x", (4,))
    parts = [x * float(i) for i in range(2 * DEPTH)]
    while len(parts) > 1:
        parts = [sum(parts[i + 1 : i + 2], parts[i]) for i in range(0, len(parts), 2)]
    g.output("y", parts[0])
    with rlx.Session("cpu").compile(g) as exe:
        total = DEPTH * (2 * DEPTH - 1)
        np.testing.assert_allclose(
            exe.run({"x": np.float32([1, -1, 2, 0])})["y"], np.array([1, -1, 2, 0]) * total, rtol=1e-5
        )


def test_through_a_file_and_back(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    g = chain(CHAINS["elementwise"])
    x = np.float32([0.5, -1, 2, 0.25])
    rlx.onnx.save(g, tmp_path / "deep.onnx")
    expected = evaluate(g, {"x": x})[g.outputs["y"].id]
    with rlx.onnx.load(tmp_path / "deep.onnx") as model:
        np.testing.assert_allclose(model.run({"x": x}, device="cpu")["y"], expected, rtol=1e-3, atol=1e-30)
