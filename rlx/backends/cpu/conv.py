"""Convolution on the CPU: products with columns made block by block, 1x1 kernels as plain products; im2col."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.conv_depthwise import bind_depthwise
from rlx.backends.cpu.expr_eval import bind_trees
from rlx.backends.cpu.kernels import cpu_kernel
from rlx.backends.cpu.matmul import multiply
from rlx.backends.cpu.movement import copies
from rlx.backends.cpu.rows import F32, working
from rlx.backends.cpu.windows import padded, view_windows
from rlx.dtypes import f32
from rlx.ir import Expr, Node, get_op
from rlx.ir import expr as ex
from rlx.ops.linalg import ACTIVATIONS

_NS_A_FLOP = 1 / 100
_COLUMNS = 1 << 18  # elements of a block of columns: stays in the second-level cache


@cpu_kernel("conv")
def bind_conv(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    x, w, out = ins[0], ins[1], outs[0]
    dtype = working(out.dtype)
    steps: list[Step] = []
    if w.size == 0:
        steps.append(partial(np.copyto, out, 0, "unsafe"))
        return steps + _finish(node, out, ins, out, slice(None), ctx, None)
    w = padded(w, (), dtype, 0, ctx, steps)
    if w.shape[1] == 1 and node.attrs["groups"] > 1:
        x = padded(x, (), dtype, 0, ctx, steps)

        def finish(sums: Array, result: Array, channels: slice, thread: int) -> list[Step]:
            return _finish(node, sums, ins, result, channels, ctx, thread, axis=0)

        return steps + bind_depthwise(node.attrs, x, w, out, ctx, finish)
    x = padded(x, node.attrs["pads"], dtype, 0, ctx, steps)
    return steps + _by_columns(node, x, w, ins, out, ctx)


def _epilogue(node: Node) -> Expr | None:
    """What becomes of a sum: argument 0 is the sum (f32 for halves), argument 1 the bias."""
    kept = node.output.dtype
    held = f32 if kept.is_half else kept
    tree = ex.arg(0, held)
    if len(node.inputs) == 3:
        tree = ex.call("add", tree, ex.cast(ex.arg(1, node.inputs[2].dtype), held))
    activation = node.attrs.get("activation")
    if activation is not None:
        name, attrs = ACTIVATIONS[activation]
        rule = get_op(name).expr
        assert rule is not None
        tree = rule([tree], attrs)
    return None if tree.prim == "arg" and held == kept else ex.cast(tree, kept)


def _finish(
    node: Node, made: Array, ins: Sequence[Array], out: Array, channels: slice, ctx: BindContext, thread: int | None,
    axis: int = 1,
) -> list[Step]:  # fmt: skip
    """Bias, activation and rounding of some channels, which lie along `axis`: made → out."""
    tree = _epilogue(node)
    if tree is None:
        return [] if made is out else [partial(np.copyto, out, made)]
    bias = [ins[2][channels].reshape(-1, *(1,) * (out.ndim - 1 - axis))] if len(ins) == 3 else []
    return bind_trees([tree], [made, *bias], [out], ctx, thread)


def _by_columns(
    node: Node, x: Array, w: Array, ins: Sequence[Array], out: Array, ctx: BindContext
) -> list[Step]:
    """Groups, images and blocks of rows of the output, each one product."""
    attrs, kernel = node.attrs, w.shape[2:]
    counts, groups = out.shape[2:], attrs["groups"]
    rows, inner = w.shape[0] // groups, w.shape[1]
    terms, positions = inner * math.prod(kernel), math.prod(counts)
    weights = w.reshape(groups, rows, terms)
    target = out.reshape(len(out), groups, rows, positions)
    plain = math.prod(kernel) == 1 and set(attrs["strides"]) == {1} and x.shape[2:] == counts
    seen = view_windows(x, kernel, attrs["strides"], attrs["dilations"], counts)
    line = positions // counts[0]
    blocks = _blocks(counts[0], line, terms, len(out) * groups)
    pieces = [(n, g, block) for n in range(len(out)) for g in range(groups) for block in blocks]
    marks = ctx.mark()

    def bind(piece: int, thread: int) -> list[Step]:
        ctx.back_to(marks, thread)
        n, g, block = pieces[piece]
        part = slice(block.start * line, block.stop * line)
        channels = slice(g * inner, (g + 1) * inner)
        steps: list[Step] = []
        if plain:
            columns = x[n, channels].reshape(inner, positions)[:, part]
        else:
            height = block.stop - block.start
            columns = ctx.scratch((terms, height * line), x.dtype, thread)
            at: Any = (n, channels, *(slice(None),) * len(kernel), block)
            source = seen[at]
            steps.append(partial(np.copyto, columns.reshape(source.shape), source))
        result = target[n, g][:, part]
        made = result if result.dtype == x.dtype else ctx.scratch(result.shape, x.dtype, thread)
        steps += product(weights[g], columns, made, ctx, thread)
        return steps + _finish(node, made, ins, result, slice(g * rows, (g + 1) * rows), ctx, thread, axis=0)

    work = 2.0 * out.size * terms * _NS_A_FLOP + 0.3 * terms * positions * len(out)
    return ctx.split(len(pieces), work, bind)


def product(a: Array, b: Array, out: Array, ctx: BindContext, thread: int) -> list[Step]:
    """out = a @ b, in f32 by BLAS, else by NumPy."""
    return multiply(a, b, out, ctx, thread) if out.dtype == F32 else [partial(np.matmul, a, b, out)]


def _blocks(height: int, line: int, terms: int, others: int) -> list[slice]:
    """Rows of the output in even blocks; by the shape alone, so that any number of threads gives the same bits."""
    most = max(1, _COLUMNS // max(1, terms * line))
    parts = -(-height // most)
    if parts == 1 and others == 1 and height * line * terms > _COLUMNS // 8:
        parts = min(height, 2)
    most = -(-height // parts)
    return [slice(i, min(height, i + most)) for i in range(0, height, most)]


@cpu_kernel("im2col")
def bind_im2col(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    attrs, x = node.attrs, ins[0]
    kernel = attrs["kernel"]
    steps: list[Step] = []
    wide = padded(x, attrs["pads"], x.dtype, 0, ctx, steps)
    counts = tuple(
        (n - d * (k - 1) - 1) // s + 1
        for n, k, s, d in zip(wide.shape[2:], kernel, attrs["strides"], attrs["dilations"], strict=True)
    )
    seen = view_windows(wide, kernel, attrs["strides"], attrs["dilations"], counts)
    return steps + copies(seen, outs[0].reshape(seen.shape), ctx)
