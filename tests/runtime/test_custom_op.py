"""Custom ops: NumPy alone, native kernels, gradients, and the errors of wrong ones."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.errors import DTypeError, RlxError, ShapeError, UnsupportedOp
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
    if session.info.backend != "vulkan" or shutil.which("glslangValidator"):
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


_HEAD = """#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
layout(local_size_x = %s) in;
layout(buffer_reference, scalar) buffer F32 { float v[]; };
layout(push_constant, scalar) uniform Args { F32 x; F32 y; uint n; };
"""
_GLSL = _HEAD + "void main() { uint i = gl_GlobalInvocationID.x; if (i < n) y.v[i] = x.v[i] * x.v[i] + 1.0; }"


def _squared_and_one(glsl: str | None, **settings: Any) -> CustomOp:
    return rlx.custom_op(
        "squared_and_one", lambda x: x * x + np.float32(1), infer=lambda types, attrs: types[0], glsl=glsl, **settings
    )


def _compiled(op: CustomOp) -> rlx.CompiledGraph:
    """The op's program for Vulkan, in which no step of the host stands for it."""
    g = rlx.Graph("squares")
    g.output("y", op(g.input("x", (1000,))))
    return rlx.Session("vulkan", fallback="error").compile(g)


@pytest.mark.vulkan
@pytest.mark.skipif(shutil.which("glslangValidator") is None, reason="no glslangValidator here: package glslang-tools")
def test_a_kernel_from_glsl_rounds_each_operation() -> None:
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    with _squared_and_one(_GLSL % 64, threads=64) as op, _compiled(op) as exe:
        np.testing.assert_array_equal(exe.run({"x": x})["y"], x * x + np.float32(1))


@pytest.mark.vulkan
@pytest.mark.skipif(shutil.which("glslangValidator") is None, reason="no glslangValidator here: package glslang-tools")
@pytest.mark.parametrize(
    "glsl, error, words",
    [
        (_GLSL.replace("y.v[i]", "z.v[i]") % 256, RlxError, r"line 7: 'z' : undeclared identifier\n    void main"),
        (_GLSL % "256, oops", RlxError, "line 4: 'oops' : unrecognized layout"),
        (_HEAD % 256, RlxError, "Missing entry point"),
        (_GLSL % 64, ShapeError, "workgroups are 64 x 1 x 1, and threads is 256"),
    ],
    ids=["name", "layout", "no main", "size"],
)
def test_glsl_with_mistakes_names_their_lines(glsl: str, error: type[Exception], words: str) -> None:
    with _squared_and_one(glsl) as op, _compiled(op) as exe, pytest.raises(error, match=f"squared(?s:.*){words}"):
        exe.run({"x": np.ones(1000, np.float32)})


@pytest.mark.vulkan
def test_glsl_without_a_compiler_says_what_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a program needs it, and only there."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("GLSLANG", raising=False)
    with _squared_and_one(_GLSL % 256) as op:
        with _compiled(op) as exe, pytest.raises(UnsupportedOp, match=r"apt install glslang-tools.*`spirv`"):
            exe.run({"x": np.ones(1000, np.float32)})
        np.testing.assert_array_equal(rlx.jit(op, device="cpu")(np.ones(3, np.float32)), [2, 2, 2])
    with pytest.raises(UnsupportedOp, match="give one of them"):
        _squared_and_one(_GLSL % 256, spirv=b"\x03\x02\x23\x07" + bytes(16))


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


@pytest.mark.parametrize("kernel", ["cuda", "glsl"])
def test_a_kernel_is_text(kernel: str) -> None:
    with pytest.raises(UnsupportedOp, match=f"`{kernel}` is b'void main.*expected the text of a kernel"):
        rlx.custom_op("not_text", numpy=np.abs, infer=lambda types, attrs: types[0], **{kernel: b"void main() {}"})
