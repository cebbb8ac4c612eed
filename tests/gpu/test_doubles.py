"""Programs in f64 on devices that have it, and on devices that lack it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import rlx
from rlx.autodiff import gradients
from rlx.conformance.oracle import evaluate
from rlx.errors import UnsupportedOp
from rlx.ir import Graph, Tensor
from tests.devices import session_here

F64 = npt.NDArray[np.float64]


@pytest.fixture(params=["vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> rlx.Session:
    return session_here(request.param, fallback="error")


def _near(got: Any, want: F64, limit: float = 1e-13) -> None:
    assert got.dtype == np.float64
    np.testing.assert_allclose(
        got, want, rtol=0, atol=limit * max(float(np.max(np.abs(want), initial=0)), 1e-300)
    )


def _checked(session: rlx.Session, graph: Graph, feeds: dict[str, Any], **options: Any) -> None:
    """Runs the graph with no step on the host and compares it with NumPy."""
    values = evaluate(graph, feeds)
    with session.compile(graph, **options) as compiled:
        got = compiled.run(feeds)
    for name, t in graph.outputs.items():
        _near(got[name], values[t.id])


def _block(g: Graph, x: Tensor, label: Tensor) -> Tensor:
    """A layer of attention, one of a network, and a loss."""
    n, d = x.shape[1], x.shape[2]

    def weight(name: str, *shape: int) -> Tensor:
        return g.input(name, shape, "f64")

    h = rlx.layer_norm(x, weight("g1", d), weight("b1", d))
    q, k, v = (rlx.reshape(h @ weight(name, d, d), (2, n, 2, d // 2)) for name in ("wq", "wk", "wv"))
    mixed = rlx.attention(*(rlx.transpose(t, (0, 2, 1, 3)) for t in (q, k, v)), causal=True)
    x = x + rlx.reshape(rlx.transpose(mixed, (0, 2, 1, 3)), (2, n, d)) @ weight("wo", d, d)
    h = rlx.gelu(rlx.rms_norm(x, weight("g2", d)) @ weight("w1", d, 4 * d))
    logits = rlx.reshape(x + h @ weight("w2", 4 * d, d), (2 * n, d))
    return rlx.mean(rlx.cross_entropy(logits, label))


@pytest.mark.late
def test_a_transformer_and_its_gradients(session: rlx.Session) -> None:
    g = Graph("block")
    x, label = g.input("x", (2, 7, 12), "f64"), g.input("label", (14,), "i32")
    loss = _block(g, x, label)
    wrt = {name: t for name, t in g.inputs.items() if name != "label"}
    g.output("loss", loss)
    for name, d in zip(wrt, gradients(loss, list(wrt.values())), strict=True):
        assert d is not None
        g.output(f"d{name}", d)
    rng = np.random.default_rng(0)
    feeds: dict[str, Any] = {name: rng.standard_normal(t.shape) / 3 for name, t in g.inputs.items()}
    feeds["label"] = rng.integers(0, 12, 14).astype(np.int32)
    _checked(session, g, feeds)
    _checked(session, g, feeds, optimize=False)


def test_a_small_picture_network(session: rlx.Session) -> None:
    g = Graph("picture")
    x, w, b = g.input("x", (2, 3, 9, 8), "f64"), g.input("w", (5, 3, 3, 3), "f64"), g.input("b", (5,), "f64")
    y = rlx.max_pool(rlx.relu(rlx.conv(x, w, b, pads=1)), 2)
    y = rlx.conv_transpose(y, g.input("u", (5, 4, 2, 2), "f64"), strides=2)
    g.output("y", rlx.avg_pool(rlx.resize(y, sizes=(2, 4, 10, 12), mode="linear"), 2))
    rng = np.random.default_rng(1)
    _checked(session, g, {name: rng.standard_normal(t.shape) for name, t in g.inputs.items()})


def test_mixed_dtypes_meet_in_f64(session: rlx.Session) -> None:
    """Operands promoted to f64 are computed in f64, and their promotion loses no bit."""
    g = Graph("mixed")
    x, n = g.input("x", (40, 30), "f32"), g.input("n", (30,), "i64")
    d = g.input("d", (30, 6), "f64")
    wide = rlx.cast(x, "f64") * rlx.cast(n, "f64")
    g.output("y", wide @ d + 0.1)
    g.output("least", rlx.where(wide > 1.0, wide, rlx.exp(wide * -1e-12)))
    g.output("running", rlx.cumsum(wide, axis=0))
    rng = np.random.default_rng(2)
    feeds = {"x": rng.standard_normal((40, 30)).astype(np.float32), "d": rng.standard_normal((30, 6))}
    _checked(session, g, {**feeds, "n": rng.integers(-(2**40), 2**40, 30)})


def _program() -> tuple[Graph, dict[str, F64]]:
    g = Graph("wide")
    x = g.input("x", (6, 50), "f64")
    g.output("soft", rlx.softmax(x * 3.0))
    g.output("flat", rlx.transpose(x))
    g.output("best", rlx.top_k(x, 3)[0])
    return g, {"x": np.random.default_rng(3).standard_normal((6, 50))}


@pytest.mark.parametrize("lacking", ["f64", "i64"])
def test_a_device_without_f64_leaves_it_to_the_host_and_says_so(
    session: rlx.Session, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """f64 needs 64-bit integers too, as which its bits are taken apart. Moving and ordering elements needs neither."""
    info, target = session.device.info, session.device.target
    monkeypatch.setattr(session.device, "info", replace(info, features=info.features - {lacking}))
    monkeypatch.setattr(session.device, "target", replace(target, features=target.features - {lacking}))
    graph, feeds = _program()
    with pytest.raises(UnsupportedOp, match=r"f64"):
        session.compile(graph)
    values = evaluate(graph, feeds)
    with rlx.Session(session.info.id).compile(graph) as compiled:
        how: dict[str, set[str]] = {}
        for entry in compiled.report():
            how.setdefault(entry.how, set()).add(entry.op)
        assert "softmax" in how["host"] and {"transpose", "top_k"}.isdisjoint(how["host"])
        got = compiled.run(feeds)
    for name, t in graph.outputs.items():
        _near(got[name], values[t.id])


def test_no_module_of_another_dtype_asks_for_f64(repo: Path) -> None:
    path = repo / "rlx" / "backends" / "vulkan" / "spirv" / "manifest.json"
    modules = json.loads(path.read_text(encoding="utf-8"))["modules"]
    wide = {name for name, entry in modules.items() if "Float64" in entry["capabilities"]}
    assert wide and all("64" in name for name in wide)
