"""Elementwise ops and data movement: the lowered steps on a Vulkan device give NumPy's result, bit for bit where data
only moves."""

from __future__ import annotations

import importlib
import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlx.backends.gpu.elementwise import strided
from rlx.backends.gpu.elementwise.strided import View, broadcast, collapse, contiguous, launch_tree
from rlx.backends.gpu.program.lowering import LOWERINGS, Lowering
from rlx.backends.gpu.program.steps import Copy, FileKernel, Language, Launch, Ref, TreeKernel
from rlx.backends.gpu.program.target import Target
from rlx.driver import Limits, MemoryPlan
from rlx.dtypes import bf16, f32, f64, i32, i64, u8
from rlx.ir import Graph, expr
from tests.gpu import lowered
from tests.gpu.lowered import Array, lower, run

for _family in ("elementwise", "movement"):
    importlib.import_module(f"rlx.backends.gpu.rules.{_family}")
DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    np.int32,
    np.int64,
    np.int8,
    np.uint8,
    np.bool_,
]


def bits(shape: tuple[int, ...], dtype: Any) -> Array:
    """Random bit patterns, NaN with payloads among them."""
    dtype = np.dtype(dtype)
    raw = np.random.default_rng(math.prod(shape)).integers(
        0, 256, math.prod(shape) * dtype.itemsize, dtype=np.uint8
    )
    return (raw % 2 if dtype == np.bool_ else raw).view(dtype).reshape(shape)


def same(got: Array, want: Array) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


# -- movement


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_movement_keeps_every_bit(dtype: Any) -> None:
    x = bits((3, 4, 5), dtype)
    same(run("transpose", x, perm=(2, 0, 1)), np.transpose(x, (2, 0, 1)))
    same(run("slice", x, starts=(2, 1, 4), stops=(-1, 4, -1), steps=(-2, 2, -1)), x[::-2, 1:4:2, ::-1])
    same(run("expand", x[:, :1].copy(), shape=(2, 3, 6, 5)), np.broadcast_to(x[:, :1], (2, 3, 6, 5)))
    same(run("concat", x, x[:, :1].copy(), x, axis=1), np.concatenate([x, x[:, :1], x], axis=1))
    same(run("reshape", x, shape=(5, 12)), x.reshape(5, 12))


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "shape, perm",
    [
        ((), ()),
        ((7,), (0,)),
        ((1, 1), (1, 0)),
        ((2, 3), (1, 0)),
        ((2, 1, 3), (2, 1, 0)),
        ((0, 3), (1, 0)),
        ((2, 3, 4, 5), (0, 2, 1, 3)),
        ((2, 3, 4, 5, 2), (4, 2, 0, 3, 1)),
        ((33, 65), (1, 0)),
        ((16, 100), (1, 0)),
        ((3, 40, 17), (0, 2, 1)),
        ((2, 40, 3, 33), (0, 2, 3, 1)),
        ((2, 2, 20, 3, 33), (0, 1, 3, 4, 2)),
        ((40, 3, 33), (2, 1, 0)),
    ],
)
def test_transpose(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    x = bits(shape, np.float32)
    same(run("transpose", x, perm=perm), np.transpose(x, perm))


@pytest.mark.vulkan
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_tiles_move_every_bit(dtype: Any) -> None:
    x = bits((2, 37, 70), dtype)
    same(run("transpose", x, perm=(0, 2, 1)), np.transpose(x, (0, 2, 1)))
    step = lower("transpose", [x], {"perm": (0, 2, 1)})[2].steps[0]
    assert isinstance(step, Launch) and isinstance(step.kernel, FileKernel) and step.kernel.stem == "transpose"


@pytest.mark.vulkan
@given(data=st.data())
@settings(max_examples=30)
def test_any_slice(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    parts = []
    for n in shape:
        step = data.draw(st.sampled_from([1, 1, 2, 3, -1, -2]))
        start = data.draw(st.integers(0, n - 1))
        count = data.draw(st.integers(1, len(range(start, n if step > 0 else -1, step))))
        parts.append((start, start + (count - 1) * step + (1 if step > 0 else -1), step))
    x = bits(shape, np.int32)
    starts, stops, steps = zip(*parts, strict=True)
    want = x[tuple(slice(a, None if b < 0 else b, c) for a, b, c in parts)]
    same(run("slice", x, starts=starts, stops=stops, steps=steps), want)


@pytest.fixture
def hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowering as for hardware, not a software driver: packs of four neighbouring elements where layouts allow it."""
    monkeypatch.setattr(lowered, "SOFTWARE", False)


@pytest.mark.vulkan
@pytest.mark.usefixtures("hardware")
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_packs_move_every_bit(dtype: Any) -> None:
    x = bits((3, 4, 5, 8), dtype)
    cases = [
        ("transpose", {"perm": (0, 2, 1, 3)}, np.transpose(x, (0, 2, 1, 3))),
        ("transpose", {"perm": (3, 2, 1, 0)}, np.transpose(x)),
        (
            "slice",
            {"starts": (2, 0, 0, 4), "stops": (-1, 4, 5, 8), "steps": (-1, 1, 2, 1)},
            x[::-1, :, ::2, 4:],
        ),
        ("slice", {"starts": (0, 0, 0, 3), "stops": (3, 4, 5, 7), "steps": (1, 1, 1, 1)}, x[..., 3:7]),
        ("expand", {"shape": (2, 3, 4, 5, 8)}, np.broadcast_to(x, (2, 3, 4, 5, 8))),
    ]
    for op, attrs, want in cases:
        same(run(op, x, **attrs), want)
    same(run("concat", x, x[..., :4].copy(), axis=3), np.concatenate([x, x[..., :4]], axis=3))


@pytest.mark.vulkan
@pytest.mark.usefixtures("hardware")
@pytest.mark.parametrize(
    "a, b",
    [
        ((6, 8), (8,)),
        ((6, 8), (6, 1)),
        ((2, 3, 4), (3, 1)),
        ((5, 1, 12), (7, 1)),
        ((6, 8), (1, 1)),
        ((3, 7), (7,)),
    ],
)
def test_packs_broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    for dtype in (np.float32, np.float16, np.int64):
        x, y = rng.normal(0, 9, size=a).astype(dtype), rng.normal(0, 9, size=b).astype(dtype)
        same(run("maximum", x, y), np.maximum(x, y))
        same(run("less", y, x), np.less(y, x))


@pytest.mark.usefixtures("hardware")
def test_where_packs_are_used() -> None:
    def kernel(op: str, inputs: list[Array], **attrs: Any) -> TreeKernel:
        (step,) = lower(op, inputs, attrs)[2].steps
        assert isinstance(step, Launch) and isinstance(step.kernel, TreeKernel)
        return step.kernel

    x = np.zeros((6, 8), np.float32)
    row = kernel("add", [x, x[0]])
    assert row.packed and [o.access for o in (*row.inputs, *row.outputs)] == ["flat", "strided", "flat"]
    column = kernel("add", [x, x[:, :1].copy()])
    assert column.packed and column.inputs[1].access == "repeated"
    assert not kernel("add", [x, x]).packed  # all flat: the kernel itself finds packs
    assert not kernel("add", [x[:, :7].copy(), x[0, :7].copy()]).packed
    assert not kernel("transpose", [x], perm=(1, 0)).packed
    assert not kernel("slice", [x], starts=(0, 1), stops=(6, 5), steps=(1, 1)).packed


def test_bytes_in_a_row_are_copied_not_computed() -> None:
    x = np.zeros((4, 6), np.float32)
    for op, attrs in (
        ("reshape", {"shape": (24,)}),
        ("slice", {"starts": (1, 0), "stops": (3, 6), "steps": (1, 1)}),
        ("transpose", {"perm": (0, 1)}),
    ):
        _, _, lowering = lower(op, [x], attrs)
        assert [type(s) for s in lowering.steps] == [Copy], op
    _, _, lowering = lower("concat", [x, x], {"axis": 0})
    assert [type(s) for s in lowering.steps] == [Copy, Copy]


def test_eight_bytes_without_64_bit_integers_move_as_pairs() -> None:
    graph = Graph("pairs")
    y = graph.add("transpose", [graph.input("x", (4, 6), f64)], {"perm": (1, 0)})[0]
    graph.output("y", y)
    from rlx.driver.memory.planner import plan

    lowering = Lowering(graph, plan(graph, planner="bump"), Target(packs=False), "f32")
    lowering.lower(graph.nodes[-1])
    (step,) = lowering.steps
    assert isinstance(step, Launch) and isinstance(step.kernel, TreeKernel)
    assert step.kernel.outputs[0].storage == i32 and step.args[-1] == 48


# -- elementwise


@pytest.mark.vulkan
@pytest.mark.parametrize(
    "a, b",
    [
        ((), ()),
        ((5,), ()),
        ((3, 4), (4,)),
        ((3, 4), (3, 1)),
        ((2, 1, 4), (3, 1)),
        ((0, 4), (4,)),
        ((1,), (1, 1, 1)),
        ((2, 3, 4, 5), (3, 1, 5)),
        ((300, 7), (300, 1)),
    ],
)
def test_broadcasting(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=a).astype(np.float32), rng.normal(size=b).astype(np.float32)
    same(run("add", x, y), np.asarray(x + y))
    same(run("maximum", y, x), np.asarray(np.maximum(y, x)))
    same(run("less", x, y), np.asarray(x < y))


@pytest.mark.vulkan
def test_mixed_dtypes_and_selection() -> None:
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 9)).astype(ml_dtypes.bfloat16)
    y = rng.normal(size=9).astype(np.float32)
    same(run("mul", x, y), x.astype(np.float32) * y)
    c = rng.integers(0, 2, (40, 1)).astype(bool)
    same(run("where", c, x, x[:1].copy()), np.where(c, x, x[:1]))
    h = rng.normal(size=1000).astype(np.float16)
    same(run("cast", h, dtype=bf16), h.astype(np.float32).astype(ml_dtypes.bfloat16))
    n = rng.integers(0, 255, 1000).astype(np.uint8)
    same(run("add", n, n), n + n)


@pytest.mark.vulkan
def test_a_fused_node_of_many_inputs() -> None:
    arrays = [np.random.default_rng(k).normal(size=(3, 50)).astype(np.float32) for k in range(12)]
    tree = expr.arg(0, f32)
    for k in range(1, 12):
        tree = tree + expr.arg(k, f32)
    want = arrays[0]
    for a in arrays[1:]:
        want = want + a
    same(run("fused", *arrays, trees=(tree,), shape=(3, 50)), want)


def test_what_a_device_lacks_stays_on_the_host() -> None:
    graph = Graph("g")

    def native(dtype: Any, features: set[str], op: str = "add") -> bool:
        x = graph.input(f"x{len(graph.nodes)}", (3,), dtype)
        node = graph.add(op, [x, x] if op == "add" else [x], {} if op == "add" else {"perm": (0,)})[0].node
        return LOWERINGS[op].when(node, Target(frozenset(features)))

    everything = {"i64", "16bit_storage", "8bit_storage"}
    assert native(f32, set()) and native(i32, set())
    assert not native(f64, everything) and not native(f64, {"f64"}) and native(f64, everything | {"f64"})
    assert native(i64, everything) and not native(i64, everything - {"i64"})
    assert native(f64, set(), "transpose") and not native(u8, set(), "transpose")
    # Elements of less than 32 bits are read and written in words where the device stores nothing smaller.
    assert native(bf16, everything) and native(bf16, everything - {"16bit_storage"})
    assert native(u8, everything) and native(u8, everything - {"8bit_storage"})


# -- strides


@given(data=st.data())
@settings(max_examples=200)
def test_collapsing_keeps_the_elements(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=0, max_size=5)))
    perm = data.draw(st.permutations(range(len(shape))))
    source = np.arange(math.prod(shape) + 5)
    own = contiguous([shape[p] for p in np.argsort(perm)]) if shape else ()
    turned = tuple(own[p] for p in perm) if shape else ()
    reach = tuple(0 if data.draw(st.booleans()) else s for s in turned)
    views = [View(Ref("a", 0, 0), i32, contiguous(shape)), View(Ref("a", 0, 0), i32, reach, 2)]
    dims, merged = collapse(shape, views)
    assert len(dims) <= len(shape) and 1 not in dims
    for before, after in zip(views, merged, strict=True):
        one = np.lib.stride_tricks.as_strided(source[before.start :], shape, [8 * s for s in before.strides])
        two = np.lib.stride_tricks.as_strided(source[after.start :], dims, [8 * s for s in after.strides])
        np.testing.assert_array_equal(one.ravel(), two.ravel())


def test_dimensions_merge_where_all_operands_allow_it() -> None:
    slot = Ref("a", 0, 0)
    whole = View(slot, f32, contiguous((2, 3, 4, 5)))
    dims, _ = collapse((2, 3, 4, 5), [whole, whole])
    assert dims == (120,)
    row = View(slot, f32, broadcast((4, 5), (2, 3, 4, 5)))
    dims, views = collapse((2, 3, 4, 5), [whole, row])
    assert dims == (6, 20) and views[1].strides == (0, 1)


def test_a_launch_touches_only_the_bytes_it_names() -> None:
    view = View(Ref("a", 1000, 400), f32, (-10, 2), 95)
    assert view.span((4, 3)) == (65, 99)
    assert view.ref((4, 3)) == Ref("a", 1000 + 4 * 65, 4 * 35)


def test_more_elements_than_31_bits_are_several_launches() -> None:
    target = Target(frozenset({"8bit_storage"}), Limits(max_groups=(2**31 - 1, 65535, 65535)))
    n = 3 * strided.MAX_INDEX + 5
    lowering = Lowering(Graph("big"), MemoryPlan("bump"), target, "f32")
    views = [View(Ref("a", 0, n), u8, (1,)), View(Ref("b", 0, n), u8, (1,))]
    launch_tree(lowering, (expr.arg(0, u8),), (n,), views[:1], views[1:])
    counts = [step.args[-1] for step in lowering.steps if isinstance(step, Launch)]
    assert sum(int(c) for c in counts if isinstance(c, int)) == n and max(counts) < strided.MAX_INDEX  # type: ignore[type-var]
    ends = [step.writes[0] for step in lowering.steps if isinstance(step, Launch)]
    assert ends[0].offset == 0 and all(a.end == b.offset for a, b in itertools.pairwise(ends))
    assert ends[-1].end == n


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("long", [True, False])
def test_threads_of_long_trees_take_several_packs_after_a_long_prologue(long: bool, dtype: Any) -> None:
    target = Target(frozenset({"16bit_storage"}), long_prologue=long)
    x = expr.cast(expr.arg(0, dtype), f32)
    pack = 16 // dtype.itemsize

    def threads(tree: expr.Expr, packs: int) -> int:
        lowering, n = Lowering(Graph("long"), MemoryPlan("bump"), target, "f32"), packs * pack
        views = [View(Ref(name, 0, n * dtype.itemsize), dtype, (1,)) for name in ("a", "b")]
        launch_tree(lowering, (expr.cast(tree, dtype),), (n,), views[:1], views[1:])
        (step,) = (s for s in lowering.steps if isinstance(s, Launch))
        return 256 * math.prod(step.groups)

    curve, line = expr.call("exp", x), x + 1.0
    assert threads(curve, 1 << 20) == threads(line, 1 << 20) == 1 << 20
    assert threads(line, 1 << 24) == 1 << 24
    assert threads(curve, 1 << 22) == (1 << 20 if long else 1 << 22)
    assert threads(curve, 1 << 24) == ((1 << 24) // pack if long else 1 << 24)


@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
@pytest.mark.parametrize("language", list(Language), ids=str)
def test_threads_of_cuda_take_several_of_many_packs_of_halves(language: Language, dtype: Any) -> None:
    target = Target(frozenset({"16bit_storage"}), language=language, packs=True)

    def threads(rows: int) -> int:
        lowering, shape = Lowering(Graph("packs"), MemoryPlan("bump"), target, "f32"), (rows, 64)
        x, y = (View(Ref(name, 0, rows * 64 * dtype.itemsize), dtype, contiguous(shape)) for name in ("x", "y"))
        line = View(Ref("line", 0, 64 * dtype.itemsize), dtype, (0, 1))
        launch_tree(lowering, (expr.arg(0, dtype) + expr.arg(1, dtype),), shape, [x, line], [y])
        (step,) = (s for s in lowering.steps if isinstance(s, Launch))
        return 256 * math.prod(step.groups)

    assert threads(1 << 15) == 1 << 19
    assert threads(1 << 17) == 1 << (19 if language is Language.CUDA and dtype is bf16 else 21)
