"""Custom ops: NumPy alone, native kernels, gradients, and the errors of wrong ones."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, ShapeError, UnsupportedOp
from rlx.runtime.custom import CustomOp


@pytest.fixture
def example(repo: Path) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("custom_op_example", repo / "examples" / "custom_op.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    module.soft_shrink.close()


def test_the_example_runs_natively_on_every_device(session, example):
    x = np.random.default_rng(0).standard_normal(70_000).astype(np.float32)
    g = rlx.Graph("shrink")
    g.output("y", example.soft_shrink(g.input("x", x.shape), t=0.5) + 1)
    with session.compile(g) as exe:
        y = exe.run({"x": x})["y"]
        counts = exe.report().counts
    np.testing.assert_array_equal(y, np.sign(x) * np.maximum(np.abs(x) - np.float32(0.5), 0) + 1)
    if session.info.backend != "vulkan" or example.compile_glsl(example.GLSL):
        assert counts == {"native": 2}


def test_gradient_of_a_custom_op(example):
    x = np.float32([-2, -0.1, 0.3, 0.9])
    got = rlx.grad(lambda x: rlx.sum(example.soft_shrink(x, t=0.5) * 3), device="cpu")(x)
    np.testing.assert_array_equal(got, [3, 0, 0, 3])


@pytest.fixture
def divmod_op() -> Iterator[CustomOp]:
    with rlx.custom_op(
        "my_divmod", lambda a, b: np.divmod(a, b), infer=lambda types, attrs: (types[0], types[0])
    ) as op:
        yield op


def test_numpy_alone_is_a_reported_host_step_on_a_gpu(session, divmod_op):
    g = rlx.Graph("divmod")
    a, b = g.input("a", (5,), rlx.i32), g.input("b", (5,), rlx.i32)
    q, r = divmod_op(a * 2, b)
    g.output("q", q)
    g.output("r", r + 1)
    feeds = {"a": np.arange(5, dtype=np.int32) * 7, "b": np.full(5, 3, np.int32)}
    with session.compile(g) as exe:
        got = exe.run(feeds)
        host = [d.op for d in exe.report().host_nodes]
    np.testing.assert_array_equal(got["q"], feeds["a"] * 2 // 3)
    np.testing.assert_array_equal(got["r"], feeds["a"] * 2 % 3 + 1)
    assert host == ([] if session.info.backend == "cpu" else ["my_divmod"])


def test_fallback_error_refuses_host_steps(divmod_op):
    try:
        session = rlx.Session("vulkan", fallback="error")
    except rlx.errors.DeviceUnavailable as error:
        pytest.skip(str(error))
    g = rlx.Graph("divmod")
    g.output("q", divmod_op(g.input("a", (5,)), g.input("b", (5,)))[0])
    with pytest.raises(UnsupportedOp, match="my_divmod"):
        session.compile(g)


def _times(factor: int) -> CustomOp:
    """A cell of a notebook: each run defines the op again."""
    cuda = (
        'extern "C" __global__ void cell_times(const float* x, float* y, unsigned n) '
        f"{{ unsigned i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = {factor} * x[i]; }}"
    )
    return rlx.custom_op("cell_times", lambda x: x * np.float32(factor), infer=lambda t, a: t[0], cuda=cuda)


def test_a_redefined_op_leaves_graphs_built_before_as_they_were(session):
    x = np.ones(3, np.float32)
    with _times(2) as first:
        before = rlx.Graph("before")
        before.output("y", first(before.input("x", (3,))))
        with _times(2) as same, _times(5) as changed:
            g = rlx.Graph("both")
            t = g.input("x", (3,))
            g.output("same", same(t))
            g.output("first", first(t))
            g.output("changed", changed(t))
            with session.compile(before) as exe:
                np.testing.assert_array_equal(exe.run({"x": x})["y"], [2, 2, 2])
            with session.compile(g) as exe:
                made = exe.run({"x": x})
                assert [made[name][0] for name in ("same", "first", "changed")] == [2, 2, 5]
    with pytest.raises(rlx.errors.GraphError, match="registered"):
        session.compile(before)


def test_wrong_custom_ops_are_refused(divmod_op):
    def plain(x):
        return x

    with pytest.raises(ShapeError, match="already"):
        rlx.custom_op("softmax", plain, infer=lambda types, attrs: types[0])
    with pytest.raises(ShapeError, match="not a name"):
        rlx.custom_op("a-b", plain, infer=lambda types, attrs: types[0])
    with pytest.raises(UnsupportedOp, match="SPIR-V"):
        rlx.custom_op("bad_spirv", plain, infer=lambda types, attrs: types[0], spirv=b"text")
    wrong = rlx.custom_op("bad_infer", plain, infer=lambda types, attrs: types[0].shape)
    try:
        g = rlx.Graph("g")
        with pytest.raises(DTypeError, match="bad_infer"):
            wrong(g.input("x", (2,)))
    finally:
        wrong.close()


@pytest.mark.parametrize(
    "function, error, text",
    [
        (lambda x: x[:1], ShapeError, r"output 0 of its NumPy function has shape \(1,\); infer gave \(3,\)"),
        (lambda x: (x, x), ShapeError, "gave 2 arrays; infer gave 1 types"),
        (lambda x: x * 1j, DTypeError, "is complex64; infer gave float32"),
    ],
)
def test_a_function_that_gives_something_else_than_infer_says_is_refused(session, function, error, text):
    with rlx.custom_op("strays", function, infer=lambda types, attrs: types[0]) as strays:
        g = rlx.Graph("g")
        g.output("y", strays(g.input("x", (3,))))
        with session.compile(g) as exe, pytest.raises(error, match=f"strays%1: .*{text}"):
            exe.run({"x": np.ones(3, np.float32)})
