"""Lowering of gather, gather_elements, dynamic windows and one_hot."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.program.casts import fits, groups_for, native
from rlx.backends.gpu.program.kernel import INDICES, UNITS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.dtypes import DType, i32, i64
from rlx.errors import DTypeError
from rlx.ir import Node, Tensor
from rlx.ir import expr as ex

GATHER = declare(
    KernelDecl(
        "gather",
        about=(
            "y[o, j, t] = x[o, index[j], t]: x (outer, axis, trail), m indices; bits are copied in units of "
            "U."
        ),
        grid="a thread for each of `total` = outer * m * trail units",
        args=(*reads(x="U", index="i32"), *writes(y="U"), *uints("total", "m", "axis", "trail")),
        variants={"U": UNITS, "I": INDICES},
    )
)
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


def moves_bits(node: Node, features: frozenset[str]) -> bool:
    """Whether elements of the result's dtype can be copied, and 31 bits count all elements. The smallest unit of a
    copy, needed for rows of odd length, is one element, or one byte of packed rows."""
    stored = node.output.dtype
    need = _FEATURE.get(1 if stored.is_packed else stored.itemsize)
    return (need is None or need in features) and fits(*(t.type for t in (*node.inputs, *node.outputs)))


@lowers("gather", when=moves_bits)
def lower_gather(ctx: Lowering, node: Node) -> None:
    """Copies slices (outer, axis, trail) in the largest unit that the slice and the addresses allow."""
    x, index = node.inputs
    y = node.output
    if y.size == 0:
        return
    axis = node.attrs["axis"]
    stored = one_dtype(ctx, node, x, y)
    outer, trail = math.prod(x.shape[:axis]), stored.nbytes(x.shape[axis + 1 :])
    source, target = ctx.ref(x), ctx.ref(y)
    unit = unit_of(trail, source, target)
    total = outer * index.size * trail // unit
    kernel = GATHER(U=f"b{unit}", I=index_word(ctx.storage(index)))
    args: list[Arg] = [source, ctx.ref(index), target, total, index.size, x.shape[axis], trail // unit]
    ctx.launch(kernel, groups_for(ctx, total), args)


def index_word(dtype: DType) -> str:
    """The kernels' variant I for indices of a dtype."""
    if dtype not in (i32, i64):
        raise DTypeError(f"gather: the indices are stored as {dtype}; expected i32 or i64")
    return dtype.name


def one_dtype(ctx: Lowering, node: Node, *tensors: Tensor) -> DType:
    """The dtype in which all the tensors are stored. Raises: DTypeError where they differ."""
    kinds = {ctx.storage(t) for t in tensors}
    if len(kinds) != 1:
        raise DTypeError(f"{node.op.name}: stored as {', '.join(map(str, kinds))}; expected one dtype")
    return kinds.pop()


def unit_of(nbytes: int, *refs: Ref) -> int:
    """The largest number of bytes, up to 16, that divides `nbytes` and every address."""
    return next(u for u in _UNITS if not nbytes % u and not any(ref.offset % u for ref in refs))


@lowers("gather_elements", when=moves_bits)
def lower_gather_elements(ctx: Lowering, node: Node) -> None:
    """One thread for each element."""
    x, index = node.inputs
    y, axis = node.output, node.attrs["axis"]
    if y.size == 0:
        return
    size = one_dtype(ctx, node, x, y).itemsize
    kernel = GATHER_ELEMENTS(U=f"b{size}", I=index_word(ctx.storage(index)))
    trail = math.prod(y.shape[axis + 1 :])
    refs: list[Arg] = [ctx.ref(x), ctx.ref(index), ctx.ref(y)]
    ctx.launch(kernel, groups_for(ctx, y.size), [*refs, y.size, y.shape[axis], x.shape[axis], trail])


def _window(
    ctx: Lowering, shape: Sequence[int], sizes: Sequence[int], stored: DType, around: Ref, window: Ref
) -> tuple[int, Ref, int]:
    """The copy unit, the argument block that describes the window, and the number of its axes. Trailing axes that the
    window covers wholly are contiguous and copied as one row."""
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
        # Axes covered wholly are part of the row: their start is 0.
        size, stride = (sizes[k], strides[k] * stored.itemsize // unit) if k < whole else (1, 0)
        meta += [size, stride, shape[k] - sizes[k]]
    return unit, ctx.block(meta), axes


@lowers("dynamic_slice", when=moves_bits)
def lower_dynamic_slice(ctx: Lowering, node: Node) -> None:
    """One thread for each unit of the window."""
    x, starts = node.inputs
    y = node.output
    if y.size == 0:
        return
    if y.ndim == 0:
        ctx.copy(ctx.ref(x), ctx.ref(y))
        return
    stored = one_dtype(ctx, node, x, y)
    unit, meta, axes = _window(ctx, x.shape, y.shape, stored, ctx.ref(x), ctx.ref(y))
    defines = {"U": f"b{unit}", "I": index_word(ctx.storage(starts))}
    total = y.size * stored.itemsize // unit
    args: list[Arg] = [ctx.ref(x), ctx.ref(starts), meta, ctx.ref(y), total, axes]
    ctx.launch(DYNAMIC_SLICE(**defines), groups_for(ctx, total), args)


@lowers("dynamic_update_slice", when=moves_bits)
def lower_dynamic_update(ctx: Lowering, node: Node) -> None:
    """Copies x to y, unless they share a slot; then writes the window."""
    x, update, starts = node.inputs
    y = node.output
    if y.ndim == 0:
        ctx.copy(ctx.ref(update), ctx.ref(y))
        return
    ctx.copy(ctx.ref(x), ctx.ref(y))
    if update.size == 0:
        return
    stored = one_dtype(ctx, node, x, update, y)
    unit, meta, axes = _window(ctx, x.shape, update.shape, stored, ctx.ref(y), ctx.ref(update))
    defines = {"U": f"b{unit}", "I": index_word(ctx.storage(starts))}
    total = update.size * stored.itemsize // unit
    args: list[Arg] = [ctx.ref(update), ctx.ref(starts), meta, ctx.ref(y), total, axes]
    ctx.launch(DYNAMIC_UPDATE(**defines), groups_for(ctx, total), args)


@lowers("one_hot", when=native)
def lower_one_hot(ctx: Lowering, node: Node) -> None:
    """An elementwise tree over the indices and the numbers 0, 1, …"""
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
