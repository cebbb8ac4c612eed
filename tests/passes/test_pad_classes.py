"""Logits of odd rows: padded classes change neither losses nor gradients, and labels out of range count as before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import rlx
from rlx.conformance.compare import distance
from rlx.conformance.oracle import evaluate
from rlx.ir import Graph, verify
from rlx.passes.pad_classes import pad_classes
from rlx.passes.simplify import simplify
from tests.devices import session_here

CLASSES, ROWS, WIDTH = 1027, 64, 24


def graph_of(form: str = "", dtype: str = "bf16", classes: int = CLASSES, ignored: int = -100) -> Graph:
    """Loss and gradients of a product with a table of words, as models write it."""
    g = Graph("classes")
    x = g.input("x", (2, ROWS // 2, WIDTH), dtype)
    w = g.input("w", (WIDTH, classes) if form == "plain" else (classes, WIDTH), dtype)
    b = g.input("b", (classes,), dtype)
    labels = g.input("labels", (ROWS,), "i32")
    logits = x @ w if form == "plain" else x @ w.T
    logits = logits + b if form == "bias" else logits
    loss = rlx.mean(rlx.cross_entropy(logits.reshape((ROWS, classes)), labels, reduction="none", ignore_index=ignored))
    wanted = [x, w, b] if form == "bias" else [x, w]
    g.output("loss", loss)
    for i, slope in enumerate(rlx.gradients(loss, wanted)):
        g.output(f"d{i}", slope)
    if form == "read":
        g.output("logits", logits)
    if form == "mixed":
        g.output("mixed", logits @ w)
    if form == "rows":
        g.output("rows", logits.reshape((ROWS, classes)).T @ x.reshape((ROWS, WIDTH)))
    if form == "met":
        flat = logits.reshape((ROWS, classes))
        g.output("met", flat @ rlx.gradients(loss, [flat])[0].T)
    return simplify(g)


def feeds_of(g: Graph, ignored: int = -100) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    feeds = {n: rng.standard_normal(t.shape).astype(t.dtype.np) for n, t in g.inputs.items() if n != "labels"}
    labels = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    labels[:6] = (CLASSES - 1, CLASSES, CLASSES + 3, 5000, -7, ignored)
    return {**feeds, "labels": labels}


def padded(g: Graph) -> bool:
    return any(1088 in t.shape for t in g.tensors())


@pytest.mark.parametrize("form, ignored", [("", -100), ("plain", 4000), ("bias", 7), ("rows", -100)])
def test_results_are_those_of_the_classes_that_are_there(form: str, ignored: int) -> None:
    given = graph_of(form, ignored=ignored)
    made = pad_classes(given)
    assert padded(made) and not padded(given)
    verify(made)
    feeds = feeds_of(given, ignored)
    with np.errstate(all="ignore"):
        want, got = evaluate(given, feeds), evaluate(made, feeds)
    for name in given.outputs:
        assert made.outputs[name].type == given.outputs[name].type
        np.testing.assert_allclose(got[made.outputs[name].id], want[given.outputs[name].id], rtol=1e-12, atol=1e-15)


def test_a_gpu_pads() -> None:
    given = graph_of("bias")
    feeds = feeds_of(given)
    with np.errstate(all="ignore"):
        want = evaluate(given, feeds)
    with session_here("vulkan").compile(given) as exe:
        assert padded(exe.program)
        got = exe.run(feeds)
    for name, t in given.outputs.items():
        # Logits and gradients are stored in bf16.
        assert distance(np.asarray(got[name], np.float64), want[t.id]).nmse < 5e-5


@pytest.mark.parametrize(
    "change",
    [
        {"form": "read"}, {"form": "mixed"}, {"form": "met"}, {"dtype": "f32"}, {"classes": 1032}, {"classes": 515},
        {"ignored": CLASSES - 1},
    ],
)  # fmt: skip
def test_what_would_gain_nothing_or_differ_is_left_alone(change: dict[str, Any]) -> None:
    given = graph_of(**change)
    assert pad_classes(given) is given
