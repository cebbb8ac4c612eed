"""Lowering of resize."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlx.backends.gpu.elementwise.strided import View, contiguous
from rlx.backends.gpu.program.casts import cast_ref, groups_for, native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Ref
from rlx.backends.gpu.rules.index import GATHER, moves_bits, unit_of
from rlx.backends.gpu.rules.movement import move
from rlx.dtypes import DType, f32, promote
from rlx.ir import Node
from rlx.ops.resize import AxisTable, tables

RESIZE = declare(
    KernelDecl(
        "resize",
        about="y = x resized along up to three axes: weighted sums of the neighbours that the tables name.",
        grid="a thread for each element of y, in groups of 256",
        # x, index, weight, meta (bodies/resize.h), y, total.
        args=(*reads(x="TI", index="u32", weight="TW", meta="u32"), *writes(y="TO"), *uints("total")),
        headers=("body64",),
        variants={
            "IO": ("f32_f32", "f64_f64", "f16_f16", "bf16_bf16", "f16_f32", "bf16_f32", "f32_f16", "f32_bf16")
        },
        constants={"TAPS0": 1, "TAPS1": 2, "TAPS2": 2},
        trials=((1, 2, 2), (4, 4, 1)),
    )
)

_MAX_AXES = 3  # the most axes of one launch


def _native(node: Node, features: frozenset[str]) -> bool:
    if node.attrs["mode"] == "nearest":
        return moves_bits(node, features)
    return native(node, features, with_f64=True)


@lowers("resize", when=_native)
def lower_resize(ctx: Lowering, node: Node) -> None:
    """The mode "nearest" moves bits: by one strided copy where elements repeat, else by a gather for each axis. The
    other modes are weighted sums, over up to three axes a launch."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    plan = tables(x.shape, node.attrs)
    stored, target = ctx.storage(y), ctx.ref(y)
    source = ctx.ref(x)
    if node.attrs["mode"] == "nearest":
        source = cast_ref(ctx, source, ctx.storage(x), stored, x.size)
        if not _repeat(ctx, source, target, stored, x.shape, plan):
            _gather(ctx, source, target, stored, x.shape, plan)
        return
    _weigh(ctx, source, ctx.storage(x), target, stored, x.shape, plan)


def _repeat(
    ctx: Lowering, source: Ref, target: Ref, stored: DType, shape: Sequence[int], plan: Sequence[AxisTable]
) -> bool:
    """One strided copy, where every axis grows by a whole factor (or none changes). Returns: whether that is so."""
    grown: dict[int, int] = {}
    for t in plan:
        n = shape[t.axis]
        factor = len(t.index) // n
        if len(t.index) != factor * n or not np.array_equal(t.index[:, 0], np.arange(len(t.index)) // factor):
            return False
        grown[t.axis] = factor
    dims: list[int] = []
    strides: list[int] = []
    for axis, (n, own) in enumerate(zip(shape, contiguous(shape), strict=True)):
        dims += [n, grown[axis]] if axis in grown else [n]
        strides += [own, 0] if axis in grown else [own]
    move(ctx, dims, View(source, stored, tuple(strides)), View(target, stored, contiguous(dims)))
    return True


def _gather(
    ctx: Lowering, source: Ref, target: Ref, stored: DType, shape: Sequence[int], plan: Sequence[AxisTable]
) -> None:
    """One gather per axis, in the order of the greatest reduction first."""
    now = list(shape)
    ordered = sorted(plan, key=lambda t: len(t.index) / now[t.axis])
    for number, t in enumerate(ordered):
        n, now[t.axis] = now[t.axis], len(t.index)
        outer, trail = math.prod(now[: t.axis]), math.prod(now[t.axis + 1 :]) * stored.itemsize
        last = number == len(ordered) - 1
        resized = target if last else ctx.scratch(math.prod(now) * stored.itemsize)
        unit = unit_of(trail, source, resized)
        total = outer * len(t.index) * trail // unit
        kernel = GATHER(U=f"b{unit}", I="i32")
        index = ctx.block(t.index.reshape(-1))
        ctx.launch(
            kernel, groups_for(ctx, total), [source, index, resized, total, len(t.index), n, trail // unit]
        )
        source = resized


def _weigh(
    ctx: Lowering,
    source: Ref,
    kept: DType,
    target: Ref,
    stored: DType,
    shape: Sequence[int],
    plan: Sequence[AxisTable],
) -> None:
    """Weighted sums. Each launch resizes up to three neighbouring axes, ending at the last one that still has to
    change. Between launches elements are f32 (f64 for f64)."""
    if not plan:
        move(ctx, shape, View(cast_ref(ctx, source, kept, stored, math.prod(shape)), stored, contiguous(shape)),
             View(target, stored, contiguous(shape)))  # fmt: skip
        return
    now = list(shape)
    todo = {t.axis: t for t in plan}
    while todo:
        end = max(todo) + 1
        begin = max(min(todo), end - _MAX_AXES)
        here = {axis: todo.pop(axis) for axis in list(todo) if axis >= begin}
        before = list(now)
        for axis, t in here.items():
            now[axis] = len(t.index)
        out = promote(stored, f32) if todo else stored
        resized = ctx.scratch(out.itemsize * math.prod(now)) if todo else target
        _launch(ctx, (source, kept), (resized, out), before, now, range(begin, end), here)
        source, kept = resized, out


def _launch(
    ctx: Lowering,
    x: tuple[Ref, DType],
    y: tuple[Ref, DType],
    before: Sequence[int],
    now: Sequence[int],
    axes: range,
    here: dict[int, AxisTable],
) -> None:
    if x[1].is_half and y[1].is_half and x[1] != y[1]:
        x = cast_ref(ctx, x[0], x[1], f32, math.prod(before)), f32
    fill = _MAX_AXES - len(axes)
    kind = np.float64 if y[1].name == "f64" else np.float32
    index, weight, starts, taps = [np.zeros(1, np.int32)], [np.ones(1, kind)], [0] * fill, [1] * fill
    for axis in axes:
        starts.append(sum(map(len, index)))
        t = here.get(axis)
        taps.append(t.taps if t is not None else 1)
        index.append(np.arange(before[axis], dtype=np.int32) if t is None else t.index.reshape(-1))
        weight.append(np.ones(before[axis], kind) if t is None else t.weight.astype(kind).reshape(-1))
    sizes = [1] * fill + [before[a] for a in axes], [1] * fill + [now[a] for a in axes]
    tail, total = math.prod(now[axes.stop :]), math.prod(now)
    meta = ctx.block([*sizes[0], *sizes[1], *starts, tail])
    kernel = RESIZE(IO=f"{x[1]}_{y[1]}", TAPS0=taps[0], TAPS1=taps[1], TAPS2=taps[2])
    blocks = ctx.block(np.concatenate(index)), ctx.block(np.concatenate(weight))
    ctx.launch(kernel, groups_for(ctx, total), [x[0], *blocks, meta, y[0], total])
