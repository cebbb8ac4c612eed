"""Lowering of group_norm, layer_norm_channels and the residual norms."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlx.backends.gpu import decls_grad as decls
from rlx.backends.gpu.casts import THREADS, cast_ref, fits, quads, stores
from rlx.backends.gpu.lower_norm import row_shape
from rlx.backends.gpu.lowering import Lowering, lowers
from rlx.backends.gpu.steps import Arg, FileKernel, Ref
from rlx.dtypes import DType, f32
from rlx.ir import Node, Tensor


def native(node: Node, features: frozenset[str]) -> bool:
    """Whether kernels read and write every tensor of the node."""
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


def weight_refs(ctx: Lowering, weights: Sequence[Tensor]) -> tuple[DType, list[Ref]]:
    """gamma and beta in one storage dtype: theirs, or f32 where they differ."""
    kinds = {ctx.storage(t) for t in weights}
    kept = kinds.pop() if len(kinds) == 1 else f32
    return kept, [cast_ref(ctx, ctx.ref(t), ctx.storage(t), kept, t.size) for t in weights]


def row_groups(ctx: Lowering, rows: int, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """The grid of a kernel over rows: row_shape[0] threads a row."""
    return ctx.groups(math.ceil(rows / (THREADS // shape[0])))


@lowers("group_norm", when=native)
def lower_group_norm(ctx: Lowering, node: Node) -> None:
    """A row is a group of channels."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    groups = node.attrs["groups"]
    per, inner = x.shape[1] // groups, math.prod(x.shape[2:])
    n, rows, stored = per * inner, x.shape[0] * groups, ctx.storage(y)
    source, target = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size), ctx.ref(y)
    kept, (gamma, beta) = weight_refs(ctx, node.inputs[1:])
    shape = row_shape(n, rows, int(n % 4 == 0) and quads(source, target, itemsize=stored.itemsize))
    kernel = FileKernel(decls.GROUP_NORM.stem, (("T", stored.name), ("W", kept.name)), (*shape, int(inner % 4 == 0)))
    args: list[Arg] = [source, gamma, beta, target, rows, n, groups, per, inner, float(node.attrs["eps"])]
    ctx.launch(kernel, row_groups(ctx, rows, shape), args)


@lowers("layer_norm_channels", when=native)
def lower_layer_norm_channels(ctx: Lowering, node: Node) -> None:
    """Columns of (batch, channels, places)."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    outer, n, inner, stored = x.shape[0], x.shape[1], math.prod(x.shape[2:]), ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    kept, (gamma, beta) = weight_refs(ctx, node.inputs[1:])
    across = min(32, 1 << (inner - 1).bit_length())
    kernel = FileKernel(decls.NORM_AXIS.stem, (("T", stored.name), ("W", kept.name)), (across,))
    args: list[Arg] = [source, gamma, beta, ctx.ref(y), outer, n, inner, float(node.attrs["eps"])]
    ctx.launch(kernel, ctx.groups(outer * math.ceil(inner / across)), args)


@lowers("add_layer_norm", "add_rms_norm", when=native)
def lower_add_norm(ctx: Lowering, node: Node) -> None:
    """Rows over the last axis; the sum is written only where it is an output."""
    x, y = node.inputs[0], node.outputs[-1]
    if y.size == 0:
        return
    n = x.shape[-1]
    rows, stored = x.size // n, ctx.storage(y)
    sources = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in node.inputs[:2]]
    kept, weights = weight_refs(ctx, node.inputs[2:])
    target, total = ctx.ref(y), ctx.ref(node.outputs[0])  # one and the same where only the norm is given
    aligned = int(n % 4 == 0) and quads(*sources, total, target, itemsize=stored.itemsize)
    aligned = aligned and quads(*weights, itemsize=kept.itemsize)
    shape = row_shape(n, rows, aligned)
    constants = (*shape, int(node.op.name == "add_rms_norm"), int(len(weights) == 2), int(len(node.outputs) == 2))
    kernel = FileKernel(decls.ADD_NORM.stem, (("T", stored.name), ("W", kept.name)), constants)
    args: list[Arg] = [*sources, weights[0], weights[-1], total, target, rows, n, float(node.attrs["eps"])]
    ctx.launch(kernel, row_groups(ctx, rows, shape), args)
