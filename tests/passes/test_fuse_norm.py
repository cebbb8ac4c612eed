"""Residual sums and their norms become one node where that keeps the results, and only there."""

from __future__ import annotations

import numpy as np
import pytest

import rlx
from rlx.conformance.oracle import evaluate
from rlx.dtypes import as_dtype
from rlx.ir import Graph
from rlx.models.bert import BertConfig, encoder_graph
from rlx.passes import optimize, set_param_dtypes
from rlx.passes.fuse_norm import fuse_norms
from rlx.passes.rewriting import native_everywhere
from tests.passes.values import names, same


def _graph(dtype: str = "f32") -> tuple[Graph, rlx.Tensor, rlx.Tensor, rlx.Tensor]:
    g = Graph("residual")
    return g, g.input("x", (3, 8), dtype), g.input("r", (3, 8), dtype), g.param("w", (8,), dtype)


def test_the_sum_is_kept_only_where_it_is_read() -> None:
    g, x, r, w = _graph()
    g.output("y", rlx.layer_norm(x + r, w, w))
    after = fuse_norms(g)
    (node,) = [n for n in after.nodes if not n.op.leaf]
    assert node.op.name == "add_layer_norm"
    assert node.attrs["keep_sum"] is False and len(node.outputs) == 1
    same(g, after)


def test_a_sum_that_is_read_again_or_is_a_result_is_an_output() -> None:
    g, x, r, w = _graph()
    total = x + r
    y = rlx.rms_norm(total, w)
    g.output("z", y * 2.0 + total)
    h = y + total
    g.output("h", h)
    g.output("n", rlx.rms_norm(h, w))
    after = fuse_norms(g)
    assert names(after).count("add_rms_norm") == 2
    assert all(n.attrs["keep_sum"] for n in after.nodes if n.op.name == "add_rms_norm")
    same(g, after)


def test_a_second_norm_of_the_sum_reads_it() -> None:
    g, x, r, w = _graph()
    total = x + r
    g.output("a", rlx.layer_norm(total, w, w))
    g.output("b", rlx.layer_norm(total, w, w, 0.5))
    after = fuse_norms(g)
    assert names(after) == ["add_layer_norm", "layer_norm"]
    same(g, after)


def test_weights_made_after_the_sum() -> None:
    g, x, r, w = _graph()
    total = x + r
    g.output("y", rlx.rms_norm(total, rlx.exp(w)))
    after = fuse_norms(g)
    assert names(after) == ["exp", "add_rms_norm"]
    same(g, after)


def test_what_stays() -> None:
    g, x, r, w = _graph()
    g.output("broadcast", rlx.rms_norm(x + w, w))
    early = r + r * 2.0
    g.output("read before", early * 3.0)
    g.output("norm of it", rlx.rms_norm(early, w))
    g.output("difference", rlx.layer_norm(x - r, w, w))
    half = g.input("half", (3, 8), "f16")
    g.output("mixed", rlx.rms_norm(x + half, w))
    assert "add_rms_norm" not in names(fuse_norms(g))
    same(g, fuse_norms(g))


def test_a_device_without_the_kernel() -> None:
    g, x, r, w = _graph()
    g.output("y", rlx.layer_norm(x + r, w, w))
    after = fuse_norms(g, lambda n: "host" if n.op.name == "add_layer_norm" else native_everywhere(n))
    assert names(after) == ["add", "layer_norm"]


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_half_weights_stay_half(dtype: str) -> None:
    """A layer as models have it: product with bias, residual, norm, with weights in half precision."""
    g = Graph("layer")
    x = g.input("x", (3, 8))
    a, b, w, v = g.param("a", (8, 8)), g.param("b", (8,)), g.param("w", (8,)), g.param("v", (8,))
    h = rlx.layer_norm(rlx.matmul(x, a, b) + x, w, v)
    g.output("y", rlx.layer_norm(rlx.matmul(h, a, b, activation="gelu") + h, w, v))
    kept = set_param_dtypes(g, dict.fromkeys(g.params, as_dtype(dtype)))
    after, _ = optimize(kept)
    assert names(after) == ["matmul", "add_layer_norm", "matmul", "add_layer_norm"]
    weights = [t.dtype.name for n in after.nodes if n.op.name == "add_layer_norm" for t in n.inputs[2:]]
    assert weights == [dtype] * 4
    same(kept, after)


def test_the_encoder_has_no_sum_left() -> None:
    """Each of an encoder's residual sums is read by its norm alone."""
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=8, type_vocab_size=1, layer_norm_eps=1e-12, hidden_act="gelu",
    )  # fmt: skip
    after, _ = optimize(encoder_graph(config, 2, 4))
    found = [n for n in after.nodes if n.op.name == "add_layer_norm"]
    assert len(found) == 4
    assert not any(n.attrs["keep_sum"] for n in found)


@pytest.mark.parametrize("device", ["cpu", "vulkan", "cuda"])
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_on_a_device(device: str, dtype: str) -> None:
    try:
        session = rlx.Session(device)
    except rlx.errors.DeviceUnavailable as error:
        pytest.skip(str(error))
    g, x, r, w = _graph(dtype)
    total = rlx.tanh(x) + r
    y = rlx.rms_norm(total, w)
    g.output("y", y)
    g.output("z", total * y)
    rng = np.random.default_rng(1)
    feeds = {
        n: rng.standard_normal(t.shape).astype(t.dtype.np) for n, t in (*g.inputs.items(), *g.params.items())
    }
    with session.compile(g) as compiled:
        compiled.set_param("w", feeds["w"])
        outputs = compiled.run({name: feeds[name] for name in g.inputs})
        assert "add_rms_norm" in [d.op for d in compiled.report()]
    want = evaluate(g, feeds)
    for name, t in g.outputs.items():
        limit = 1e-5 if dtype == "f32" else 3e-3
        np.testing.assert_allclose(outputs[name].astype(np.float64), want[t.id], rtol=limit, atol=limit)
