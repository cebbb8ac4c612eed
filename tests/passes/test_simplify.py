"""The nodes that simplify removes, and those that it must leave because a bit would change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlx import ops
from rlx.dtypes import DType, bf16, bool_, f16, f32, i8, i32, i64, u8
from rlx.ir import Graph, Tensor
from rlx.ops.identities import exact
from rlx.passes import simplify
from rlx.passes.simplify import FOLD_BYTES, attrs_key
from tests.passes.values import names, results


def of(function: Callable[[Tensor], Tensor], dtype: DType = f32, shape: tuple[int, ...] = (2, 3)) -> Graph:
    g = Graph("one")
    g.output("y", function(g.input("x", shape, dtype)))
    return g


def const(x: Tensor, value: float) -> Tensor:
    return x.graph.constant(value, x.dtype)


GONE: dict[str, Callable[[Tensor], Tensor]] = {
    "x * 1": lambda x: x * 1,
    "1 * x": lambda x: 1 * x,
    "x / 1": lambda x: x / 1,
    "x - 0": lambda x: x - 0.0,
    "x + -0.0": lambda x: x + const(x, -0.0),
    "x ** 1": lambda x: x**1.0,
    "neg neg": lambda x: ops.neg(ops.neg(x)),
    "copy": ops.copy,
    "clip open": lambda x: ops.clip(x),
    "reshape back": lambda x: ops.reshape(ops.reshape(x, (3, 2)), (2, 3)),
    "transpose back": lambda x: ops.transpose(ops.transpose(x)),
    "full slice": lambda x: x[0:2, 0:3],
    "expand to itself": lambda x: ops.expand(x, (2, 3)),
    "concat of one": lambda x: ops.concat([x], 0),
    "concat with nothing": lambda x: ops.concat([x, x[:0]], 0),
    "where of one": lambda x: ops.where(x > 0, x, x),
    "where known": lambda x: ops.where(x.graph.constant(np.ones((3,), bool)), x, x * 2),
    "times a filled constant": lambda x: x * x.graph.constant(np.ones((2, 3), np.float32)),
}


@pytest.mark.parametrize("name", GONE)
def test_identity_vanishes(name: str) -> None:
    g = simplify(of(GONE[name]))
    assert names(g) == []
    assert g.outputs["y"] is g.inputs["x"]


STAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "x + 0.0 turns -0.0 into 0.0": lambda x: x + 0.0,
    "x - -0.0 turns -0.0 into 0.0": lambda x: x - const(x, -0.0),
    "x * 0 keeps NaN": lambda x: x * 0.0,
    "x - x is NaN at infinity": lambda x: x - x,
    "x / x": lambda x: x / x,
    "x ** 0.5 of -0.0 is 0.0": lambda x: x**0.5,
    "x * 1 of a larger shape": lambda x: x * x.graph.constant(np.ones((4, 2, 3), np.float32)),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_would_change_a_bit_stays(name: str) -> None:
    assert len(names(simplify(of(STAYS[name])))) == 1


def test_every_identity_keeps_every_bit() -> None:
    special = np.array([[0.0, -0.0, np.inf], [-np.inf, np.nan, 1e-40]], np.float32)
    for name, function in (GONE | STAYS).items():
        g = of(function)
        want, got = results(g, {"x": special}), results(simplify(g), {"x": special})
        assert want["output", "y"].tobytes() == got["output", "y"].tobytes(), name


def test_integers_lose_their_zero() -> None:
    assert names(simplify(of(lambda x: x + 0, i32))) == []
    assert names(simplify(of(lambda x: (x - 0) * 1, i64))) == []


def test_power_of_two_multiplies() -> None:
    assert names(simplify(of(lambda x: x**2))) == ["mul"]


def test_chains_become_one() -> None:
    assert names(simplify(of(lambda x: ops.reshape(ops.reshape(x, (6,)), (3, 2))))) == ["reshape"]
    assert names(
        simplify(of(lambda x: ops.transpose(ops.transpose(x, (1, 2, 0)), (1, 2, 0)), shape=(2, 3, 4)))
    ) == ["transpose"]
    assert names(simplify(of(lambda x: ops.expand(ops.expand(x, (4, 2, 3)), (5, 4, 2, 3))))) == ["expand"]
    assert names(simplify(of(lambda x: ops.relu(ops.relu(x))))) == ["relu"]
    assert names(simplify(of(lambda x: ops.transpose(x, (1, 0)), shape=(1, 5)))) == ["reshape"]


@pytest.mark.parametrize("first", [slice(None, None, -1), slice(1, 9, 2), slice(3, None), slice(8, 1, -3)])
@pytest.mark.parametrize(
    "second", [slice(None, None, -1), slice(0, 2), slice(1, None, 2), slice(2, 0, -1), slice(1, 2)]
)
def test_slices_compose(first: slice, second: slice) -> None:
    g = of(lambda x: x[first][second], shape=(10, 2))
    after = simplify(g)
    assert len(names(after)) <= 1
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    assert np.array_equal(results(after, {"x": x})["output", "y"], x[first][second])


def test_casts() -> None:
    assert names(simplify(of(lambda x: ops.cast(ops.cast(x, f32), f16), f16))) == []
    assert names(simplify(of(lambda x: ops.cast(ops.cast(x, i32), f32), u8))) == ["cast"]
    assert names(simplify(of(lambda x: ops.cast(ops.cast(x, f16), f32), f32))) == ["cast", "cast"]
    assert names(simplify(of(lambda x: ops.cast(ops.cast(x, i8), i32), i32))) == ["cast", "cast"]


@pytest.mark.parametrize("source", [bool_, u8, i8, i32, f16, bf16, f32])
@pytest.mark.parametrize("target", [bool_, u8, i8, i32, i64, f16, bf16, f32])
def test_exact_is_right(source: DType, target: DType) -> None:
    if source.itemsize == 1 or source.is_half:
        every = np.arange(256**source.itemsize, dtype=np.uint32).astype(f"u{source.itemsize}").view(source.np)
        every = every[:2] if source.kind == "b" else every
    else:
        every = np.array([0, 1, -1, 2**24 + 1, 2**30, 70000], source.np)
    with np.errstate(all="ignore"):
        before, after = every.astype(np.float64), every.astype(target.np).astype(np.float64)
    kept = bool(((before == after) | np.isnan(before)).all())
    if source.itemsize == 1 or source.is_half:
        assert exact(source, target) == kept
    else:
        assert kept or not exact(source, target)


def test_matmul_reads_transposed_factors() -> None:
    g = Graph("matmul")
    a, b = g.input("a", (2, 4, 3)), g.param("b", (5, 4))
    g.output("y", ops.matmul(ops.transpose(a, (0, 2, 1)), ops.transpose(b)))
    after = simplify(g)
    assert names(after) == ["matmul"]
    attrs = after.nodes[-1].attrs
    assert attrs["transpose_a"] and attrs["transpose_b"]


def test_equal_nodes_are_shared_and_dead_ones_dropped() -> None:
    g = Graph("cse")
    x = g.input("x", (3,))
    g.constant(np.zeros(7, np.float32))
    g.output("y", (ops.exp(x) + g.constant([1.0, 2.0, 3.0])) * (ops.exp(x) + g.constant([1.0, 2.0, 3.0])))
    ops.sin(x)
    after = simplify(g)
    assert names(after) == ["exp", "add", "mul"]
    assert sum(n.op.name == "constant" for n in after.nodes) == 1


def test_unlike_constants_and_attributes_are_not_shared() -> None:
    g = Graph("unlike")
    x = g.input("x", (3,))
    g.output("a", ops.add(x, g.constant(0.0, f32)))
    g.output("b", ops.add(g.constant(-0.0, f32), ops.sin(x)))
    g.output("c", ops.add(g.constant(0, f16), ops.cast(x, f16)))
    assert len({t.id for t in simplify(g).outputs.values()}) == 3
    assert attrs_key({"min": 0.0}) != attrs_key({"min": -0.0})
    assert attrs_key({"min": 1}) != attrs_key({"min": 1.0}) != attrs_key({"min": True})


def test_constants_fold_up_to_a_size() -> None:
    g = Graph("fold")
    small, n = g.constant(np.arange(4, dtype=np.float32)), FOLD_BYTES // 4
    column = g.constant(np.ones((n // 64, 1), np.float32))
    row = g.constant(np.ones((1, 65), np.float32))
    g.output("folded", ops.exp(small) + 1)
    g.output("kept", column * row)
    g.output("same", -g.constant(np.ones(2 * n, np.float32)))
    after = simplify(g)
    assert names(after) == ["mul"]
    assert np.array_equal(
        after.outputs["folded"].node.attrs["value"], np.exp(np.arange(4, dtype=np.float32)) + np.float32(1)
    )
    assert after.outputs["same"].node.op.name == "constant"


def test_expanded_constants_fold_where_they_would_be_written_out() -> None:
    g = Graph("expanded")
    zeros = ops.reshape(ops.expand(g.constant(0.0, f32), (4, 3)), (2, 6))
    marked = ops.scatter_nd(ops.reshape(zeros, (12,)), g.constant(np.array([[1], [5]])), g.constant([1.0, 2.0]))
    g.output("marked", ops.concat([marked, ops.expand(g.constant([3.0]), (2,))], 0))
    g.output("added", g.constant(np.ones((4, 3), np.float32)) + ops.expand(g.constant([1.0, 2.0, 3.0]), (4, 3)))
    g.output("spread", ops.exp(ops.expand(g.constant([1.0, 2.0, 3.0]), (4, 3))))
    after, want = simplify(g), results(g, {})
    assert names(after) == ["expand", "exp"]
    assert all(np.array_equal(want[key], value) for key, value in results(after, {}).items())


@pytest.mark.parametrize("indices", [2, [1], [-1, -2, -3], [0, 2], [5, 3, 1]])
def test_known_indices_at_equal_distances_are_a_slice(indices: Any) -> None:
    g = of(lambda x: ops.gather(x, indices, 1), shape=(3, 6, 2))
    after = simplify(g)
    assert names(after)[0] == "slice" and "gather" not in names(after)
    x = np.arange(36, dtype=np.float32).reshape(3, 6, 2)
    assert np.array_equal(results(after, {"x": x})["output", "y"], np.take(x, indices, 1))


def test_rolled_rows_are_gathered_once() -> None:
    def rolled(x: Tensor) -> Tensor:
        down = ops.concat([x[:, 3:], x[:, :3]], 1)
        return ops.concat([down[:, :, 4:], down[:, :, :4]], 2)

    x = np.arange(2 * 5 * 7 * 16, dtype=np.float32).reshape(2, 5, 7, 16)
    for function, left in ((rolled, "gather"), (lambda x: ops.concat([x, x[:, ::-1], x[:, 1:2]], 1), "gather")):
        g = of(function, shape=x.shape)
        after = simplify(g)
        assert [n for n in names(after) if n != "reshape"] == [left]
        assert np.array_equal(results(after, {"x": x})["output", "y"], results(g, {"x": x})["output", "y"])
    short = of(lambda x: ops.concat([x[..., 1:], x[..., :1]], 3), shape=(2, 5, 7, 8))
    other = of(lambda x: ops.concat([x[:, 3:, 1:], x[:, :3, :6]], 1), shape=x.shape)
    assert all("concat" in names(simplify(g)) for g in (short, other))


def test_the_signature_stays() -> None:
    g = Graph("signature")
    g.input("unused", (2,))
    g.param("w", (2,))
    s = g.state("s", (2,))
    g.output("y", g.constant([1.0]))
    g.update("s", s)
    after = simplify(g)
    assert (list(after.inputs), list(after.params), list(after.states)) == (["unused"], ["w"], ["s"])
    assert after.updates["s"] is after.states["s"]
