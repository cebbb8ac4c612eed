"""Attention and its gradient share the sums of rows, and the transpositions around them go."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.ir import Graph, Node
from rlx.ops.attention.parts import NO_TOKENS, ByToken
from rlx.passes import remove_dead
from rlx.passes.keep_sums import keep_sums
from tests.passes.values import names

_TURN = (0, 2, 1, 3)
_B, _S, _H, _KV, _D = 2, 5, 4, 2, 3


def _agree(before: Graph, after: Graph) -> None:
    """The two give the same in float64."""
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(t.shape).astype(t.dtype.np) for name, t in before.inputs.items()}
    want, got = evaluate(before, feeds), evaluate(after, feeds)
    for name, t in before.outputs.items():
        np.testing.assert_allclose(got[after.outputs[name].id], want[t.id], rtol=1e-10, atol=1e-10, err_msg=name)


def _with_gradients(g: Graph, y: rlx.Tensor, given: Sequence[rlx.Tensor]) -> Graph:
    g.output("y", y)
    for i, gradient in enumerate(gradients(rlx.sum(rlx.sin(y)), given)):
        g.output(f"g{i}", gradient)
    return remove_dead(g)


def _sums(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.name.startswith("attention")]


def _by_heads(g: Graph) -> list[rlx.Tensor]:
    return [g.input(n, (_B, h, _S, _D)) for n, h in zip("qkv", (_H, _KV, _KV), strict=True)]


def test_the_gradient_takes_the_sums_of_the_forward_pass() -> None:
    g = Graph("heads")
    given = _by_heads(g)
    mask = g.constant(np.arange(_S) < 4)
    before = _with_gradients(g, rlx.attention(*given, mask, causal=True), given)
    after = keep_sums(before)
    forward, gradient = _sums(after)
    assert [forward.op.name, gradient.op.name] == ["attention_sums", "attention_sums_grad"]
    assert gradient.inputs[1:3] == forward.outputs and forward.attrs["tokens"] == NO_TOKENS
    _agree(before, after)


def test_rows_of_tokens_are_read_and_written_in_place() -> None:
    g = Graph("tokens")
    given = [g.input(n, (_B, _S, h, _D)) for n, h in zip("qkv", (_H, _KV, _KV), strict=True)]
    q, k, v = (rlx.transpose(t, _TURN) for t in given)
    before = _with_gradients(g, rlx.transpose(rlx.attention(q, k, v, window=2), _TURN), given)
    after = keep_sums(before)
    assert "transpose" in names(before) and "transpose" not in names(after)
    assert all(node.attrs["tokens"] == ByToken(15) for node in _sums(after))
    _agree(before, after)


def test_what_reads_heads_gets_heads() -> None:
    g = Graph("some")
    given = _by_heads(g)
    given[1] = g.input("kt", (_B, _S, _KV, _D))
    y = rlx.attention(given[0], rlx.transpose(given[1], _TURN), given[2])
    g.output("rows", rlx.transpose(y, _TURN))
    before = _with_gradients(g, y, given)
    after = keep_sums(before)
    assert _sums(after)[0].attrs["tokens"] == ByToken.K | ByToken.Y
    _agree(before, after)


def _of_one_product(g: Graph) -> tuple[rlx.Tensor, list[rlx.Tensor]]:
    x = g.input("x", (_B, _S, (_H + 2 * _KV) * _D))
    ends = (0, _H * _D, (_H + _KV) * _D, (_H + 2 * _KV) * _D)
    parts = [x[:, :, i:j] for i, j in pairwise(ends)]
    return x, [rlx.transpose(rlx.reshape(t, (_B, _S, -1, _D)), _TURN) for t in parts]


def test_parts_of_one_product_are_read_and_written_in_place() -> None:
    g = Graph("joined")
    x, parts = _of_one_product(g)
    before = _with_gradients(g, rlx.transpose(rlx.attention(*parts, softcap=2.0), _TURN), [x])
    after = keep_sums(before)
    assert {"transpose", "slice", "concat"} <= set(names(before))
    assert not {"transpose", "slice", "concat"} & set(names(after))
    assert [node.attrs["kv_heads"] for node in _sums(after)] == [_KV, _KV]
    _agree(before, after)


@pytest.mark.parametrize("kind", ["order", "read elsewhere"])
def test_other_parts_stay_apart(kind: str) -> None:
    g = Graph("apart")
    x, parts = _of_one_product(g)
    if kind == "order":
        parts = [parts[0], parts[2], parts[1]]
    wanted = [x] if kind == "order" else [x, parts[1]]
    before = _with_gradients(g, rlx.transpose(rlx.attention(*parts), _TURN), wanted)
    after = keep_sums(before)
    assert all(node.attrs.get("kv_heads") is None for node in _sums(after))
    _agree(before, after)


def test_it_stays_as_it_is_without_kernels_or_without_a_gradient() -> None:
    g = Graph("heads")
    given = _by_heads(g)
    before = _with_gradients(g, rlx.attention(*given), given)
    assert keep_sums(before, lambda node: "host" if "sums" in node.op.name else "native") is before
    g = Graph("forward")
    g.output("y", rlx.attention(*_by_heads(g)))
    assert keep_sums(g) is g
    g = Graph("others")
    one, two = _by_heads(g), [g.input(n, (_B, h, _S, _D)) for n, h in zip("abc", (_H, _KV, _KV), strict=True)]
    g.output("y", rlx.attention(*two))
    attrs = {"scale": 1.0, "causal": False, "window": None, "softcap": None}
    for i, t in enumerate(g.add("attention_grad", [one[0], *one], attrs)):
        g.output(f"g{i}", t)
    assert keep_sums(g) is g
