"""Transpositions of heads become part of attention where nothing else reads them."""

from __future__ import annotations

import numpy as np

import rlx
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.ir import Graph, Node
from rlx.models.bert import BertConfig, encoder_graph
from rlx.ops.attention.parts import ByToken
from rlx.passes import optimize
from rlx.passes.fuse_heads import fuse_heads
from tests.passes.values import names, same

_TURN = (0, 2, 1, 3)


def _attention(graph: Graph) -> Node:
    (node,) = [n for n in graph.nodes if n.op.name == "attention"]
    return node


def _given(graph: Graph, heads: int = 4) -> list[rlx.Tensor]:
    shapes = {"q": (2, 3, 4, 8), "k": (2, 5, heads, 8), "v": (2, 5, heads, 8)}
    return [graph.input(name, shape) for name, shape in shapes.items()]


def test_all_four_transpositions_go() -> None:
    g = Graph("heads")
    q, k, v = (rlx.transpose(t, _TURN) for t in _given(g, heads=2))
    g.output("y", rlx.transpose(rlx.attention(q, k, v, causal=True), _TURN))
    after = fuse_heads(g)
    assert names(after) == ["attention"]
    assert _attention(after).attrs["tokens"] == ByToken(15)
    same(g, after)


def test_a_transposition_that_is_read_elsewhere_stays() -> None:
    g = Graph("shared")
    q, k, v = (rlx.transpose(t, _TURN) for t in _given(g))
    g.output("keys", k)
    y = rlx.attention(q, k, v)
    g.output("heads", y)
    g.output("y", rlx.transpose(y, _TURN))
    after = fuse_heads(g)
    assert _attention(after).attrs["tokens"] == ByToken.Q | ByToken.V
    assert names(after).count("transpose") == 2
    same(g, after)


def test_only_transpositions_of_heads_count() -> None:
    g = Graph("others")
    q, k, _ = _given(g)
    turned = rlx.transpose(g.input("w", (2, 4, 8, 5)), (0, 1, 3, 2))
    q, k = rlx.transpose(q, _TURN), rlx.transpose(k, _TURN)
    g.output("y", rlx.transpose(rlx.attention(q, k, turned), (0, 1, 3, 2)))
    after = fuse_heads(g)
    assert _attention(after).attrs["tokens"] == ByToken.Q | ByToken.K
    same(g, after)


def test_a_device_that_does_not_run_it_keeps_its_transpositions() -> None:
    g = Graph("refused")
    q, k, v = (rlx.transpose(t, _TURN) for t in _given(g))
    g.output("y", rlx.attention(q, k, v))
    after = fuse_heads(g, lambda node: "host" if node.attrs.get("tokens") else "native")
    assert names(after).count("transpose") == 3
    same(g, after)


def test_an_encoder_has_none_left() -> None:
    config = BertConfig(50, 16, 2, 4, 32, 16, 2, 1e-12, "gelu")
    after, _ = optimize(encoder_graph(config, 2, 8))
    assert "transpose" not in names(after)


def test_gradients_flow_through_heads_in_tokens() -> None:
    g = Graph("gradient")
    given = _given(g, heads=2)
    turned = [rlx.transpose(t, _TURN) for t in given]
    plain = rlx.transpose(rlx.attention(*turned, causal=True), _TURN)
    attrs = {"scale": 8**-0.5, "causal": True, "window": None, "softcap": None, "tokens": ByToken(15)}
    fused = g.add("attention", given, attrs)[0]
    for word, made in (("plain", plain), ("fused", fused)):
        for name, gradient in zip("qkv", gradients(rlx.sum(made * made), given), strict=True):
            g.output(f"{word}_{name}", gradient)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(t.shape).astype(np.float32) for name, t in g.inputs.items()}
    got = evaluate(g, feeds)
    for name in "qkv":
        want = got[g.outputs[f"plain_{name}"].id]
        np.testing.assert_allclose(got[g.outputs[f"fused_{name}"].id], want, rtol=1e-10, atol=1e-10)
