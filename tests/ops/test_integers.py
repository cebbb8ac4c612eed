"""i16, u16, u32 and u64 beside NumPy's integers, on the CPU in programs and outside, and what GPUs say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rlx
from rlx.backends.gpu.program.executable import load_rules
from rlx.backends.gpu.program.lowering import runs_natively
from rlx.backends.gpu.program.target import Target
from rlx.conformance.ops_page import KINDS
from rlx.dtypes import HOST_ONLY, INTS, DType, as_dtype, promote
from rlx.errors import DTypeError
from rlx.ir import Graph, TensorType
from rlx.ir.graph import node_of
from rlx.ops.numeric import convert

NEW = sorted(HOST_ONLY, key=str)
R = np.random.default_rng(5)


def numbers(dtype: DType, *shape: int, low: int | None = None) -> Any:
    """Numbers of the whole range, its ends among them."""
    info = np.iinfo(dtype.np)
    first = info.min if low is None else low
    x = R.integers(first, info.max, shape, dtype.np, endpoint=True)
    x.reshape(-1)[:2] = first, info.max
    return x


def ran(function: Callable[..., Any], *arrays: Any) -> Any:
    """The results of one program on the CPU, with the engine where there is one."""
    g = Graph("integers")
    made = function(*(g.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)))
    for n, t in enumerate(made):
        g.output(f"y{n}", t)
    with rlx.Session("cpu").compile(g) as program:
        found = program.run({f"x{i}": a for i, a in enumerate(arrays)})
    return [found[f"y{n}"] for n in range(len(made))]


def agree(got: list[Any], wanted: list[Any]) -> None:
    for n, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.dtype == b.dtype, n
        np.testing.assert_array_equal(a, b, err_msg=str(n))


@pytest.mark.parametrize("dtype", NEW, ids=str)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_arithmetic_wraps_as_numpys(dtype: DType) -> None:
    x, y = numbers(dtype, 3, 5), numbers(dtype, 5, low=1)
    places = (y % 7).astype(dtype.np)

    def program(a: Any, b: Any, c: Any) -> list[Any]:
        return [a + b, a - b, a * b, a // b, a % b, rlx.maximum(a, b), rlx.minimum(a, b), -a, rlx.abs(a), rlx.sign(a),
                rlx.bitwise_and(a, b), rlx.bitwise_xor(a, b), rlx.bitwise_not(a), a << c, a >> c, a < b, a == b,
                rlx.where(a > b, a, b), rlx.clip(a, 5, 99), a + 1, rlx.pow(a, c), rlx.square(a)]  # fmt: skip

    wanted = [x + y, x - y, x * y, x // y, x % y, np.maximum(x, y), np.minimum(x, y), -x, np.abs(x), np.sign(x), x & y,
              x ^ y, ~x, x << places, x >> places, x < y, x == y, np.where(x > y, x, y), np.clip(x, 5, 99),
              x + dtype.np.type(1), x**places, x * x]  # fmt: skip
    agree(ran(program, x, y, places), wanted)


@pytest.mark.parametrize("dtype", NEW, ids=str)
def test_they_are_reduced_sorted_moved_and_index(dtype: DType) -> None:
    x = numbers(dtype, 4, 6)
    at = np.array([3, 0, 2], dtype.np)
    wide = dtype.np if dtype.name in ("u32", "u64") else np.dtype(np.int32)

    def program(a: Any, i: Any) -> list[Any]:
        return [rlx.sum(a, 0), rlx.prod(a, 1), rlx.max(a, 1), rlx.min(a), rlx.argmax(a, 0), rlx.sort(a), rlx.argsort(a),
                rlx.cumsum(a, 1), a[i], rlx.gather(a, i, 1), rlx.concat([a, a], 1), a.T, a[1:, ::2], rlx.take(a, i),
                rlx.top_k(a, 2)[0], rlx.flip(a), rlx.one_hot(i, 4), rlx.unique(a, size=24)]  # fmt: skip

    wanted = [x.sum(0, wide), x.prod(1, wide), x.max(1), x.min(), x.argmax(0), np.sort(x), np.argsort(x, kind="stable"),
              x.cumsum(1, wide), x[at], x[:, at], np.concatenate([x, x], 1), x.T, x[1:, ::2], x.reshape(-1)[at],
              -np.sort(-x.astype(object))[:, :2] if dtype.kind == "i" else np.sort(x)[:, :-3:-1], x[::-1, ::-1],
              np.eye(4, dtype=np.float32)[at], np.unique(x)]  # fmt: skip
    wanted[14] = np.sort(x)[:, :-3:-1]
    agree(ran(program, x, at), wanted)


@pytest.mark.parametrize("dtype", NEW, ids=str)
def test_they_are_cast_from_and_to_every_dtype(dtype: DType) -> None:
    """By rlx's rules: integers keep the low bits, floats truncate and saturate."""
    x = numbers(dtype, 9)
    others = [d for d in rlx.dtypes.ALL if d != dtype]
    back = np.array([-3.7, 0.0, 2.5, 300.0, 1e5, -1e10, 1e25, np.nan, np.inf])

    def program(a: Any, b: Any) -> list[Any]:
        return [*(rlx.cast(a, d) for d in others), rlx.cast(b, dtype)]

    found = ran(program, x, back)
    for d, got in zip(others, found, strict=False):
        with np.errstate(over="ignore"):
            wanted = x != 0 if d.kind == "b" else convert(x, d) if d.name == "bf16" else x.astype(d.np)
        np.testing.assert_array_equal(got, wanted, err_msg=str(d))
    info = np.iinfo(dtype.np)
    clipped = [min(max(int(v), info.min), info.max) if np.isfinite(v) else info.max * int(v > 0) for v in back]
    np.testing.assert_array_equal(found[-1], np.array(clipped, dtype.np))


def test_products_of_unsigned_integers_wrap_as_numpys() -> None:
    for dtype in ("u32", "u64"):
        x, y = (numbers(as_dtype(dtype), *s) for s in ((3, 4), (4, 2)))
        agree(ran(lambda a, b: [a @ b, rlx.tensordot(a, b, 1)], x, y), [x @ y, x @ y])


def test_promotion_is_numpys_among_integers_but_where_numpy_leaves_them() -> None:
    for a in INTS:
        for b in INTS:
            theirs = np.promote_types(a.np, b.np)
            if theirs.kind == "f":
                with pytest.raises(DTypeError, match=f"{a} beside {b}: no integer holds"):
                    promote(a, b)
            elif {a.name, b.name} == {"u8", "i8"}:
                assert promote(a, b) == rlx.i32
            else:
                assert promote(a, b).np == theirs


def test_outside_a_trace_and_in_states() -> None:
    x = rlx.array(np.array([1, 2, 65535], np.uint16), device="cpu")
    agree([np.asarray(x + x), np.asarray(x[x > 1]), np.asarray(rlx.sum(x))], [
        np.array([2, 4, 65534], np.uint16), np.array([2, 65535], np.uint16), np.array(65538, np.int32)])  # fmt: skip
    assert np.from_dlpack(x).dtype == np.uint16
    g = Graph("counter")
    count = g.state("count", (2,), "u64")
    g.update("count", count + g.input("x", (2,), "u64"))
    g.output("now", count * 2)
    with rlx.Session("cpu").compile(g) as program:
        for _ in range(3):
            got = program.run({"x": np.array([1, 2**63], np.uint64)})["now"]
    np.testing.assert_array_equal(got, np.array([4, 0], np.uint64))


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_runs_none_of_them_itself(kind: str) -> None:
    """Its program has a step on the host, which the report says and fallback="error" refuses."""
    load_rules()
    target = Target(KINDS[kind])
    for dtype in NEW:
        t = TensorType((4,), dtype)
        assert not runs_natively(node_of("add", [t, t], {}), target)
        assert not runs_natively(node_of("cast", [t], {"dtype": rlx.f32}), target)
    f = TensorType((4,), rlx.f32)
    assert runs_natively(node_of("add", [f, f], {}), target)


def test_a_number_that_they_do_not_hold_is_refused() -> None:
    x = Graph("g").input("x", (2,), "u16")
    for value in (-1, 65536):
        with pytest.raises(DTypeError, match="not a value of u16"):
            x + value
