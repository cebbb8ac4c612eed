"""The rest of the elementwise table, pad, and fusion groups that become one launch, on the GPU backends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import rlx
from rlx.conformance.case import cases_of
from rlx.dtypes import ALL, HOST_ONLY
from rlx.ir import Tensor
from rlx.runtime import CompiledGraph, Session
from tests.devices import session_here

NATIVE = [t for t in ALL if t not in HOST_ONLY]
OPS = (
    *("tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "atan2", "exp2"),
    *("expm1", "log2", "log10", "log1p", "cbrt", "trunc", "softplus", "mish", "elu", "selu"),
    *("leaky_relu", "hard_sigmoid", "hard_swish", "isnan", "isinf", "isfinite", "mod", "fmod"),
    *("floor_divide", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "left_shift"),
    *("right_shift", "pad"),
)  # fmt: skip
Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module", params=["vulkan", "cuda"])
def session(request: pytest.FixtureRequest) -> Session:
    return session_here(request.param)


def compiled(session: Session, fn: Callable[..., Tensor], arrays: Mapping[str, Array]) -> CompiledGraph:
    g = rlx.Graph("test")
    g.output("y", fn(*(g.input(name, a.shape, a.dtype) for name, a in arrays.items())))
    return session.compile(g)


def launches(exe: CompiledGraph) -> list[str]:
    """The kernels of a program; no node may run on the host."""
    report = list(exe.report())
    assert {d.how for d in report} <= {"native", "alias"}, str(exe.report())
    return [step for d in report for step in d.steps]


def check(session: Session, fn: Callable[..., Tensor], arrays: Mapping[str, Array], want: Array) -> None:
    """Checks that a function is one launch and gives `want`."""
    exe = compiled(session, fn, arrays)
    assert len(launches(exe)) == 1, str(exe.report())
    np.testing.assert_allclose(exe.run(dict(arrays))["y"], want, rtol=2e-6, atol=1e-6)


def normal(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("op", OPS)
def test_every_op_is_one_launch(session: Session, op: str) -> None:
    for case in cases_of(op)[::9]:
        if case.attrs.get("dtype") in {s.dtype for s in case.inputs}:
            continue  # a cast to the same dtype is no node
        exe = session.compile(case.graph())
        steps = launches(exe)
        empty = all(0 in t.shape for t in case.graph().outputs.values())
        assert len(steps) == (0 if empty else 1), (case.id, steps)


@pytest.mark.parametrize("target", NATIVE, ids=str)
@pytest.mark.parametrize("source", NATIVE, ids=str)
def test_every_cast_is_one_launch(session: Session, source: Any, target: Any) -> None:
    if source == target:
        pytest.skip("a cast to the same dtype is none")
    exe = compiled(session, lambda x: rlx.cast(x, target), {"x": np.ones(4099, source.np)})
    same = source.itemsize == target.itemsize == 1 and target.kind != "b"  # the bytes already are the answer
    assert launches(exe) == ([] if same else ["tree"])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_bulk_casts_round_to_nearest_even(session: Session, dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 1 << 32, 70_001, dtype=np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        want = x.astype(dtype)
    got = compiled(session, lambda t: rlx.cast(t, np.dtype(dtype)), {"x": x}).run({"x": x})["y"]
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got.view(np.uint16)[number], want.view(np.uint16)[number])
    back = compiled(session, lambda t: rlx.cast(t, "f32"), {"x": want}).run({"x": want})["y"]
    np.testing.assert_array_equal(back[number], want.astype(np.float32)[number])


@pytest.mark.parametrize("unary", ["relu", "tanh", "exp", "neg"])
def test_binary_then_unary_is_one_launch(session: Session, unary: str) -> None:
    x, y = normal(33, 65), normal(65)
    oracle = {"relu": lambda v: np.maximum(v, 0), "tanh": np.tanh, "exp": np.exp, "neg": np.negative}[unary]
    check(session, lambda a, b: getattr(rlx, unary)(a + b), {"x": x, "y": y}, oracle(x + y))


def test_many_small_problems_are_one_launch(session: Session) -> None:
    """The same fusion group over (B, n), with inputs that each problem has its own of, and one that all share."""
    x, scale, shift, w = normal(300, 7), normal(300, 1), normal(300, 1), normal(7)
    check(
        session,
        lambda a, s, t, v: rlx.tanh(a * s + t) * v,
        {"x": x, "scale": scale, "shift": shift, "w": w},
        np.tanh(x * scale + shift) * w,
    )


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (1, 8), (3, 1)])
def test_an_enlarged_image_is_read_in_one_pass(session: Session, size: tuple[int, int]) -> None:
    x, skip, bias = normal(2, 3, *size), normal(2, 3, 2 * size[0], 2 * size[1]), normal(3, 1, 1)
    want = np.maximum(x.repeat(2, 2).repeat(2, 3) + skip * bias, 0)
    check(
        session,
        lambda a, s, b: rlx.relu(rlx.upsample2x(a) + s * b),
        {"x": x, "skip": skip, "bias": bias},
        want,
    )


@pytest.mark.parametrize("axis, count", [(0, 2), (1, 2), (1, 3), (1, 4)])
def test_repeated_elements_are_read_in_one_pass(session: Session, axis: int, count: int) -> None:
    x = normal(6, 8)
    z = normal(*(n * (count if i == axis else 1) for i, n in enumerate(x.shape)))
    want = np.tanh(x.repeat(count, axis)) + z
    check(session, lambda a, b: rlx.tanh(rlx.repeat(a, count, axis)) + b, {"x": x, "z": z}, want)


def test_rearrangements_are_one_launch(session: Session) -> None:
    x = normal(6, 5, 8)
    check(session, lambda t: rlx.flip(t, (0, 2)), {"x": x}, np.flip(x, (0, 2)))
    check(session, lambda t: rlx.tile(t, (2, 1, 3)), {"x": x}, np.tile(x, (2, 1, 3)))
    check(session, lambda t: rlx.diagonal(t, 1, 1, 2), {"x": x}, np.diagonal(x, 1, 1, 2))
    check(session, lambda t: rlx.triu(t, -1), {"x": x}, np.triu(x, -1))
    check(session, lambda t: rlx.full_like(t, 2.5), {"x": x}, np.full_like(x, 2.5))


def test_views_are_no_launch_where_they_can_be(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: Any = session.device
    # Equal launches would be one.
    monkeypatch.setattr(opened, "target", replace(opened.target, batches=False))
    x = normal(6, 4)
    g = rlx.Graph("split")
    for i, part in enumerate(rlx.split(g.input("x", x.shape), 3, 0)):
        g.output(f"y{i}", rlx.tanh(part))
    exe = session.compile(g)
    assert launches(exe) == ["tree"] * 3
    for i, part in enumerate(np.split(x, 3)):
        np.testing.assert_allclose(exe.run({"x": x})[f"y{i}"], np.tanh(part), rtol=1e-6)
