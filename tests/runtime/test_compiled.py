"""Compiled graphs: weights, state, clones, threads, repeated runs, and the errors of wrong calls."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, GraphError, OutOfDeviceMemory, ShapeError
from tests.threads import at_once


def layer(batch: int = 4, k: int = 24, n: int = 10) -> rlx.Graph:
    g = rlx.Graph("layer")
    x = g.input("x", (batch, k))
    w, b = g.param("w", (k, n)), g.param("b", (n,))
    g.output("y", rlx.softmax(rlx.gelu(x @ w + b)))
    return g


def arrays(
    seed: int = 0, batch: int = 4, k: int = 24, n: int = 10
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = (batch, k), (k, n), (n,)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    return x, w, b


def expected(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    from scipy.special import erf

    z = x.astype(np.float64) @ w.astype(np.float64) + b
    a = 0.5 * z * (1 + erf(z / np.sqrt(2)))
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_a_run_gives_the_float64_answer_and_fresh_arrays(session):
    x, w, b = arrays()
    with session.compile(layer()) as exe:
        exe.set_params({"w": w, "b": b})
        y = exe.run({"x": x})["y"]
        np.testing.assert_allclose(y, expected(x, w, b), rtol=2e-5, atol=1e-7)
        kept = y.copy()
        exe.run({"x": -x})
        np.testing.assert_array_equal(y, kept)


@pytest.mark.parametrize("storage", ["typed", "f32"])
@pytest.mark.parametrize("planner", ["reuse", "bump"])
@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.sample(vulkan=3)
def test_every_way_to_compile_agrees(session, storage, planner, optimize):
    x, w, b = arrays()
    with session.compile(layer(), storage=storage, planner=planner, optimize=optimize) as exe:
        exe.set_params({"w": w, "b": b})
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected(x, w, b), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [rlx.f16, rlx.bf16], ids=str)
def test_half_weights_are_rounded_weights(session, dtype):
    x, w, b = arrays()
    with session.compile(layer()) as exe:
        exe.set_params({"w": w, "b": b})
        exe.run({"x": x})
        exe.set_param("w", w, dtype=dtype)
        rounded = w.astype(dtype.np).astype(np.float32)
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected(x, rounded, b), rtol=2e-5, atol=1e-7)
        assert exe.weights.dtypes()["w"] == dtype
        assert exe.report().counts.get("host", 0) == 0
        exe.set_param("w", w)
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected(x, w, b), rtol=2e-5, atol=1e-7)


def test_executables_share_one_copy_of_the_weights(session):
    x, w, b = arrays(k=256, n=300)
    first = session.compile(layer(4, 256, 300))
    first.set_params({"w": w, "b": b})
    one = first.weights.nbytes
    second = session.compile(layer(2, 256, 300), weights=first.weights)
    np.testing.assert_allclose(second.run({"x": x[:2]})["y"], expected(x[:2], w, b), rtol=1e-4, atol=1e-7)
    first.run({"x": x})
    assert first.weights.nbytes == one
    first.set_param("w", 2 * w)
    np.testing.assert_allclose(second.run({"x": x[:2]})["y"], expected(x[:2], 2 * w, b), rtol=1e-4, atol=1e-7)
    first.set_param("w", w, dtype="bf16")
    rounded = w.astype(rlx.bf16.np).astype(np.float32)
    np.testing.assert_allclose(
        second.run({"x": x[:2]})["y"], expected(x[:2], rounded, b), rtol=1e-4, atol=1e-7
    )
    other = rlx.Graph("other")
    other.output("y", other.param("w", (3, 3)) + 1)
    with pytest.raises(ShapeError, match="shared store"):
        session.compile(other, weights=first.weights)
    first.close()
    np.testing.assert_allclose(
        second.run({"x": x[:2]})["y"], expected(x[:2], rounded, b), rtol=1e-4, atol=1e-7
    )
    second.close()


def counter() -> rlx.Graph:
    g = rlx.Graph("counter")
    x = g.input("x", (3,))
    total, _last = g.state("total", (3,)), g.state("last", (3,))
    g.output("before", total * 1.0)
    g.update("total", total + x)
    g.update("last", total)
    return g


def test_state_is_read_before_and_replaced_after_a_run(session):
    with session.compile(counter()) as exe:
        one = np.ones(3, np.float32)
        assert [exe.run({"x": one})["before"][0] for _ in range(3)] == [0, 1, 2]
        np.testing.assert_array_equal(exe.get_state("total"), [3, 3, 3])
        np.testing.assert_array_equal(exe.get_state("last"), [2, 2, 2])
        exe.set_state("total", np.float32([10, 20, 30]))
        np.testing.assert_array_equal(exe.run({"x": one})["before"], [10, 20, 30])


def test_states_may_swap(session):
    g = rlx.Graph("swap")
    a, b = g.state("a", (5,)), g.state("b", (5,))
    g.update("a", b)
    g.update("b", a)
    with session.compile(g) as exe:
        exe.set_state("a", np.arange(5, dtype=np.float32))
        exe.set_state("b", -np.ones(5, np.float32))
        exe.run()
        np.testing.assert_array_equal(exe.get_state("a"), -np.ones(5))
        np.testing.assert_array_equal(exe.get_state("b"), np.arange(5))


def test_a_clone_has_its_own_state_and_shares_the_weights(session):
    with session.compile(counter()) as exe:
        one = np.ones(3, np.float32)
        exe.run({"x": one})
        with exe.clone() as twin:
            assert twin.run({"x": one})["before"][0] == 1
            assert twin.run({"x": one})["before"][0] == 2
            assert exe.run({"x": one})["before"][0] == 1
            assert twin.weights is exe.weights


def test_threads_on_one_executable_give_the_single_thread_bits(session):
    _x, w, b = arrays()
    with session.compile(layer()) as exe:
        exe.set_params({"w": w, "b": b})
        feeds = [arrays(seed)[0] for seed in range(32)]
        alone = [exe.run({"x": f})["y"] for f in feeds]
        made = at_once(32, lambda i: [exe.run({"x": feeds[i]})["y"] for _ in range(5)])
    for several, one in zip(made, alone, strict=True):
        assert all(np.array_equal(y, one) for y in several)


def test_a_thousand_runs_have_one_hash(session):
    x, w, b = arrays()
    with session.compile(layer()) as exe:
        exe.set_params({"w": w, "b": b})
        hashes = {hashlib.sha256(exe.run({"x": x})["y"].tobytes()).hexdigest() for _ in range(1000)}
        assert len(hashes) == 1


def test_wrong_inputs_are_named(session):
    x, w, b = arrays()
    with session.compile(layer()) as exe:
        with pytest.raises(GraphError, match=r"weights not set: \['w', 'b'\]"):
            exe.run({"x": x})
        exe.set_params({"w": w, "b": b})
        with pytest.raises(GraphError, match=r"missing \['x'\]"):
            exe.run({})
        with pytest.raises(GraphError, match=r"unknown \['z'\]"):
            exe.run({"x": x, "z": x})
        with pytest.raises(ShapeError, match=r"input 'x': expected shape \(4, 24\), got \(4, 23\)"):
            exe.run({"x": x[:, 1:]})
        with pytest.raises(DTypeError, match=r"expected dtype f32, got float64; convert"):
            exe.run({"x": x.astype(np.float64)})
        with pytest.raises(GraphError, match="no parameter 'v'"):
            exe.set_param("v", w)
        with pytest.raises(ShapeError, match="weight 'w'"):
            exe.set_param("w", w.T)
        with pytest.raises(DTypeError, match="f16 or bf16"):
            exe.set_param("w", w, dtype="i32")
        np.testing.assert_allclose(exe.run({"x": x})["y"], expected(x, w, b), rtol=2e-5, atol=1e-7)
    with pytest.raises(GraphError, match="closed"):
        exe.run({"x": x})


def test_python_lists_are_accepted(session):
    g = rlx.Graph("list")
    g.output("y", g.input("x", (3,)) * 2)
    with session.compile(g) as exe:
        np.testing.assert_array_equal(exe.run({"x": [1, 2, 3]})["y"], [2, 4, 6])


def test_a_graph_too_large_says_need_free_and_largest_tensors(session):
    g = rlx.Graph("huge")
    x = g.input("x", (1 << 24, 1 << 16))
    g.output("y", rlx.exp(x))
    with pytest.raises(OutOfDeviceMemory, match=r"needs [\d,]+ bytes .* are free|bytes"):
        session.compile(g)
    with session.compile(layer()) as exe:  # a smaller graph still works
        x, w, b = arrays()
        exe.set_params({"w": w, "b": b})
        exe.run({"x": x})


def test_outputs_may_be_inputs_params_constants_and_repeated(session):
    g = rlx.Graph("plain")
    x, w = g.input("x", (2,)), g.param("w", (2,))
    y = x + 1
    for name, t in {"x": x, "w": w, "c": g.constant([5.0, 6.0]), "y": y, "again": y}.items():
        g.output(name, t)
    with session.compile(g) as exe:
        exe.set_param("w", np.float32([3, 4]))
        got = exe.run({"x": np.float32([1, 2])})
    assert {k: v.tolist() for k, v in got.items()} == {
        "x": [1, 2], "w": [3, 4], "c": [5, 6], "y": [2, 3], "again": [2, 3]
    }  # fmt: skip


def test_empty_tensors_run(session):
    g = rlx.Graph("empty")
    x = g.input("x", (0, 4))
    g.output("y", rlx.exp(x) + 1)
    g.output("s", rlx.sum(x, axis=0))
    with session.compile(g) as exe:
        got = exe.run({"x": np.zeros((0, 4), np.float32)})
    assert got["y"].shape == (0, 4)
    np.testing.assert_array_equal(got["s"], np.zeros(4))


def test_report_lists_every_node(session):
    with session.compile(layer()) as exe:
        _, w, b = arrays()
        exe.set_params({"w": w, "b": b})
        report = exe.report()
        assert report.counts == {"native": 2}
        assert report.host_nodes == []
        assert "softmax" in str(report)
        assert exe.plan.overhead == 1.0
