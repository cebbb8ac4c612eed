"""Transpositions of the parts of a tensor are one of the whole; parts of a tensor have one gradient, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import rlx
from rlx import nn
from rlx.autodiff import gradients
from rlx.ir import Graph, Tensor, verify
from rlx.passes.join_transpositions import join_transpositions
from rlx.passes.simplify import simplify
from tests.passes.values import differences, results


def heads_of(x: Tensor, cuts: Sequence[slice], perm: Sequence[int] = (0, 2, 1, 3), read: bool = False) -> Graph:
    """A graph that gives the parts of x along its last axis, as transposed heads of four."""
    for k, cut in enumerate(cuts):
        part = x[:, :, cut]
        shape = (*x.shape[:2], part.shape[-1] // 4, 4)
        x.graph.output(f"y{k}", rlx.transpose(part.reshape(shape), perm))
        if read:
            x.graph.output(f"part{k}", part + 1.0)
    return simplify(x.graph)


def given(width: int = 24) -> Tensor:
    return Graph("parts").input("x", (2, 3, width))


THIRDS = [slice(0, 8), slice(8, 16), slice(16, 24)]


def feeds() -> dict[str, Any]:
    return {"x": np.random.default_rng(0).standard_normal((2, 3, 24)).astype(np.float32)}


@pytest.mark.parametrize("perm", [(0, 2, 1, 3), (2, 0, 3, 1)])
def test_parts_are_transposed_at_once(perm: Sequence[int]) -> None:
    before = heads_of(given(), THIRDS[::-1], perm)
    after = join_transpositions(before)
    verify(after)
    assert [n.op.name for n in after.nodes].count("transpose") == 1
    assert differences(before, results(before, feeds()), results(after, feeds())) == []


def test_parts_without_heads() -> None:
    x = given()
    for k, part in enumerate(rlx.split(x, 2, 2)):
        x.graph.output(f"y{k}", rlx.transpose(part, (2, 0, 1)))
    after = join_transpositions(x.graph)
    assert [n.op.name for n in after.nodes].count("transpose") == 1
    assert differences(x.graph, results(x.graph, feeds()), results(after, feeds())) == []


@pytest.mark.parametrize(
    "graph",
    [
        lambda: heads_of(given(), THIRDS[:2]),  # not all of x
        lambda: heads_of(given(), [slice(0, 8), slice(8, 24)]),  # not alike
        lambda: heads_of(given(), [slice(0, 8), slice(4, 12), slice(16, 24)]),  # twice and not at all
        lambda: heads_of(given(), THIRDS, read=True),  # read elsewhere
        lambda: heads_of(given(), [slice(0, 24, 2), slice(1, 24, 2)]),  # with a step
    ],
)
def test_other_parts_stay(graph: Callable[[], Graph]) -> None:
    before = graph()
    assert join_transpositions(before) is before


def of_parts(cuts: Sequence[slice]) -> tuple[Graph, dict[str, Any]]:
    """The gradient of a sum over parts of x, the k-th times k + 1."""
    x = given()
    total = sum((rlx.sum(x[:, :, cut] * (k + 1.0)) for k, cut in enumerate(cuts)), x.graph.constant(0.0, "f32"))
    x.graph.output("dx", gradients(total, [x])[0])
    after = simplify(x.graph)
    return after, {"want": sum((k + 1.0) * (np.isin(range(24), range(24)[cut])) for k, cut in enumerate(cuts))}


@pytest.mark.parametrize(
    "cuts, sums",
    [
        (THIRDS, 0),
        ([slice(20, 24), slice(2, 8)], 0),  # with a gap, and not to the ends
        ([slice(0, 8), slice(4, 12)], 1),  # in part the same elements
        ([slice(0, 24), slice(0, 8)], 1),
    ],
)
def test_gradients_of_parts_lie_side_by_side(cuts: Sequence[slice], sums: int) -> None:
    graph, want = of_parts(cuts)
    backward = [n for n in graph.nodes if n.op.name == "add" and n.output.shape == (2, 3, 24)]
    assert len(backward) == sums
    got = results(graph, feeds())
    np.testing.assert_array_equal(next(iter(got.values())), np.broadcast_to(want["want"], (2, 3, 24)))


def test_a_step_of_attention_moves_each_tensor_once() -> None:
    """Queries, keys and values of one product: what is cut and transposed is moved by one node."""
    g = Graph("attention")
    x, w = g.input("x", (2, 8, 16)), g.param("w", (16, 48))
    q, k, v = (nn.heads(t, 2) for t in rlx.split(x @ w, 3, -1))
    loss = rlx.sum(nn.joined(rlx.attention(q, k, v, causal=True)) ** 2)
    g.output("dw", gradients(loss, [w])[0])
    after = join_transpositions(simplify(g))
    cut = [n for n in after.nodes if n.op.name == "slice" and n.op.view is not None and n.op.view(n) is None]
    assert not cut and sum(n.op.name == "concat" for n in after.nodes) == 1
