"""Lowering of gather_elements, scatters, dynamic windows and one_hot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.program.casts import THREADS, cast_ref, convert, fits, groups_for, stores
from rlx.backends.gpu.program.kernel import INDICES, UNITS, KernelDecl, declare, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.backends.gpu.rules.index import index_word
from rlx.backends.gpu.rules.order import SORT_MERGE, SPAN, sort_lines
from rlx.dtypes import DType, i32
from rlx.errors import DTypeError
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex

GATHER_ELEMENTS = declare(
    KernelDecl(
        "gather_elements",
        about=(
            "y[o, j, t] = x[o, index[o, j, t], t]: x (outer, axis, trail), m places; bits are copied in units "
            "of U."
        ),
        grid="a thread for each of `total` = outer * m * trail elements",
        args=(*reads(x="U", index="i32"), *writes(y="U"), *uints("total", "m", "axis", "trail")),
        variants={"U": ("b1", "b2", "b4", "b8"), "I": INDICES},
    )
)
SCATTER_SET = declare(
    KernelDecl(
        "scatter_set",
        about=(
            "y[o, index[j], t] = updates[o, j, t]: y (outer, n, trail), m updates; bits are copied in units "
            "of U."
        ),
        grid="a thread for each of `total` = outer * m * trail units",
        args=(*reads(updates="U", pairs="b8"), *writes(y="U"), *uints("total", "m", "n", "trail")),
        variants={"U": UNITS},
        constants={"ONE_LIST": True},
        trials=((False,), (True,)),
    )
)
SCATTER_REDUCE = declare(
    KernelDecl(
        "scatter_reduce",
        about="y[o, index[j], t] joined with updates[o, j, t]: y (outer, n, trail), m updates.",
        grid="a thread for each of `total` = outer * m * trail elements",
        args=(*reads(updates="T", pairs="b8"), *updates(y="T"), *uints("total", "m", "n", "trail")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16", "i32", "i64")},
        constants={"ONE_LIST": True, "KIND": 0},
        trials=((False, 0), (True, 3)),
    )
)
DYNAMIC_SLICE = declare(
    KernelDecl(
        "dynamic_slice",
        about="y = the window of x that begins at `starts`; bits are copied in units of U.",
        grid="a thread for each of `total` units of the window",
        args=(*reads(x="U", starts="i32", meta="u32"), *writes(y="U"), *uints("total", "axes")),
        variants={"U": UNITS, "I": INDICES},
    )
)
DYNAMIC_UPDATE = declare(
    KernelDecl(
        "dynamic_update",
        about="The window of y that begins at `starts` = update; bits are copied in units of U.",
        grid="a thread for each of `total` units of the window",
        args=(*reads(update="U", starts="i32", meta="u32"), *writes(y="U"), *uints("total", "axes")),
        variants={"U": UNITS, "I": INDICES},
    )
)

_UNITS = (16, 8, 4, 2, 1)
_FEATURE = {1: "8bit_storage", 2: "16bit_storage"}
_KINDS = {"add": 0, "mul": 1, "min": 2, "max": 3}


def _moves(node: Node, features: frozenset[str]) -> bool:
    """Whether elements of the result's dtype can be copied, and 31 bits count everything."""
    need = _FEATURE.get(node.output.dtype.itemsize)
    return (need is None or need in features) and fits(*(t.type for t in (*node.inputs, *node.outputs)))


def _one_dtype(ctx: Lowering, node: Node, *tensors: Tensor) -> DType:
    """The dtype all of them are stored as."""
    kinds = {ctx.storage(t) for t in tensors}
    if len(kinds) != 1:
        raise DTypeError(f"{node.op.name}: stored as {', '.join(map(str, kinds))}; expected one dtype")
    return kinds.pop()


def unit_of(nbytes: int, *refs: Ref) -> int:
    """The most bytes, up to 16, that divide a run of `nbytes` and every address."""
    return next(u for u in _UNITS if not nbytes % u and not any(ref.offset % u for ref in refs))


@lowers("gather_elements", when=_moves)
def lower_gather_elements(ctx: Lowering, node: Node) -> None:
    """A thread an element."""
    x, index = node.inputs
    y, axis = node.output, node.attrs["axis"]
    if y.size == 0:
        return
    size = _one_dtype(ctx, node, x, y).itemsize
    kernel = GATHER_ELEMENTS(U=f"b{size}", I=index_word(ctx.storage(index)))
    trail = math.prod(y.shape[axis + 1 :])
    refs: list[Arg] = [ctx.ref(x), ctx.ref(index), ctx.ref(y)]
    ctx.launch(kernel, groups_for(ctx, y.size), [*refs, y.size, y.shape[axis], x.shape[axis], trail])


# -- scatter


def _scatters(node: Node, features: frozenset[str]) -> bool:
    indices, updates = node.inputs[:2]
    # The keys are made from the indices by a tree, which computes i64 only where the device does.
    return (
        stores(indices.dtype, features)
        and stores(updates.dtype, features, doubles=True)
        and _moves(node, features)
    )


@lowers("scatter", "scatter_elements", when=_scatters)
def lower_scatter(ctx: Lowering, node: Node) -> None:
    """Indices are sorted with their numbers, stably; then the thread at the first (or last) of an index has the rest of
    them beside it. y holds x, or zeros, before."""
    indices, updates = node.inputs[:2]
    y, axis, n = node.output, node.attrs["axis"], node.attrs["length"]
    if y.size == 0:
        return
    reduction = node.attrs["reduction"]
    x = node.inputs[2] if len(node.inputs) == 3 else None
    stored = _one_dtype(ctx, node, updates, y, *(() if x is None else (x,)))
    shared = node.op.name == "scatter"
    outer = math.prod(updates.shape[:axis])
    m = indices.size if shared else updates.shape[axis]
    trail = math.prod(y.shape[axis + 1 :])
    work = (
        stored if stored.itemsize > 1 or reduction == "none" else i32
    )  # bytes are joined in i32, which wraps alike
    target = ctx.ref(y) if work == stored else ctx.scratch(y.size * work.itemsize)
    _begin(ctx, y, None if x is None else ctx.ref(x), stored, target, work)
    if updates.size:
        pairs = _pairs(ctx, indices, n, (1, m, 1) if shared else (outer, m, trail))
        source = cast_ref(ctx, ctx.ref(updates), stored, work, updates.size)
        if reduction == "none":
            # A list that all share allows for units larger than an element.
            unit = unit_of(trail * stored.itemsize, source, target) if shared else stored.itemsize
            run = trail * stored.itemsize // unit
            kernel = SCATTER_SET(U=f"b{unit}", ONE_LIST=shared)
        else:
            run = trail
            kernel = SCATTER_REDUCE(T=work.name, ONE_LIST=shared, KIND=_KINDS[reduction])
        total = outer * m * run
        ctx.launch(kernel, groups_for(ctx, total), [source, pairs, target, total, m, n, run])
    if work != stored:
        convert(ctx, target, work, ctx.ref(y), stored, y.size)


def _begin(ctx: Lowering, y: Tensor, x: Ref | None, stored: DType, target: Ref, work: DType) -> None:
    """target = x, or zeros, as `work`."""
    if x is None:
        launch_tree(ctx, [ex.lit(0, work)], (y.size,), [], [View(target, work, (1,))])
    elif work == stored:
        ctx.copy(x, target)
    else:
        convert(ctx, x, stored, target, work, y.size)


def _pairs(ctx: Lowering, indices: Tensor, n: int, dims: tuple[int, int, int]) -> Ref:
    """(index counted from the front, number) of each line of indices, sorted; n and more for those out of range."""
    stored = ctx.storage(indices)
    index_word(stored)
    index = ex.arg(0, stored)
    front = ex.call("select", ex.call("lt", index, 0), index + n, index)
    inside = ex.call("and", ex.call("ge", index, -n), ex.call("lt", index, n))
    key = ex.cast(ex.call("select", inside, front, n), i32)
    keys = ctx.scratch(indices.size * 4)
    launch_tree(ctx, [key], (indices.size,), [View(ctx.ref(indices), stored, (1,))], [View(keys, i32, (1,))])
    outer, m, inner = dims
    # Keys are ≥ 0, so their bits are in order as they are: kind 0.
    pairs = sort_lines(ctx, keys, "b4", 0, 0, dims, SPAN, 8, None)
    run, spare = SPAN, ctx.scratch(pairs.nbytes) if m > SPAN else pairs
    while run < m:
        kernel = SORT_MERGE(U="b4", GIVEN=0)
        groups = ctx.groups(outer * inner * math.ceil(m / THREADS))
        ctx.launch(kernel, groups, [keys, pairs, spare, spare, spare, outer * inner, m, inner, 0, run])
        pairs, spare, run = spare, pairs, 2 * run
    return pairs


# -- dynamic windows


def _window(
    ctx: Lowering, shape: Sequence[int], sizes: Sequence[int], stored: DType, around: Ref, window: Ref
) -> tuple[int, Ref, int]:
    """The unit, the block that describes the window, and how many axes it has: whole axes at the end lie in a row."""
    axes = len(shape)
    trailing = 1
    whole = axes
    while whole and sizes[whole - 1] == shape[whole - 1]:
        whole -= 1
        trailing *= shape[whole]
    unit = unit_of(trailing * stored.itemsize, around, window)
    row = trailing * stored.itemsize // unit
    strides = contiguous(shape)
    meta = [row]
    for k in reversed(range(axes)):
        # The whole axes are part of the row: their start is 0.
        size, stride = (sizes[k], strides[k] * stored.itemsize // unit) if k < whole else (1, 0)
        meta += [size, stride, shape[k] - sizes[k]]
    return unit, ctx.block(meta), axes


@lowers("dynamic_slice", when=_moves)
def lower_dynamic_slice(ctx: Lowering, node: Node) -> None:
    """A thread a unit of the window."""
    x, starts = node.inputs
    y = node.output
    if y.size == 0:
        return
    if y.ndim == 0:
        ctx.copy(ctx.ref(x), ctx.ref(y))
        return
    stored = _one_dtype(ctx, node, x, y)
    unit, meta, axes = _window(ctx, x.shape, y.shape, stored, ctx.ref(x), ctx.ref(y))
    words = {"U": f"b{unit}", "I": index_word(ctx.storage(starts))}
    total = y.size * stored.itemsize // unit
    args: list[Arg] = [ctx.ref(x), ctx.ref(starts), meta, ctx.ref(y), total, axes]
    ctx.launch(DYNAMIC_SLICE(**words), groups_for(ctx, total), args)


@lowers("dynamic_update_slice", when=_moves)
def lower_dynamic_update(ctx: Lowering, node: Node) -> None:
    """x, unless y lies where x did; then the window."""
    x, update, starts = node.inputs
    y = node.output
    if y.ndim == 0:
        ctx.copy(ctx.ref(update), ctx.ref(y))
        return
    ctx.copy(ctx.ref(x), ctx.ref(y))
    if update.size == 0:
        return
    stored = _one_dtype(ctx, node, x, update, y)
    unit, meta, axes = _window(ctx, x.shape, update.shape, stored, ctx.ref(y), ctx.ref(update))
    words = {"U": f"b{unit}", "I": index_word(ctx.storage(starts))}
    total = update.size * stored.itemsize // unit
    args: list[Arg] = [ctx.ref(update), ctx.ref(starts), meta, ctx.ref(y), total, axes]
    ctx.launch(DYNAMIC_UPDATE(**words), groups_for(ctx, total), args)


# -- one_hot


def _compares(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


@lowers("one_hot", when=_compares)
def lower_one_hot(ctx: Lowering, node: Node) -> None:
    """A tree over the indices and the numbers 0, 1, …"""
    indices, y = node.inputs[0], node.output
    depth, axis = node.attrs["depth"], node.attrs["axis"]
    if y.size == 0:
        return
    stored, out = ctx.storage(indices), ctx.storage(y)
    index, place = ex.arg(0, stored), ex.arg(1, i32)
    front = ex.call("select", ex.call("lt", index, 0), index + depth, index)
    hit = ex.call("and", ex.call("ge", index, -depth), ex.call("eq", front, place))
    tree = ex.call("select", hit, ex.lit(node.attrs["on"], out), ex.lit(node.attrs["off"], out))
    own = contiguous(indices.shape)
    numbers = ctx.block(np.arange(depth, dtype=np.int32))
    views = [
        View(ctx.ref(indices), stored, (*own[:axis], 0, *own[axis:])),
        View(numbers, i32, tuple(int(i == axis) for i in range(y.ndim))),
    ]
    launch_tree(ctx, [tree], y.shape, views, [View(ctx.ref(y), out, contiguous(y.shape))])
