"""Grouped and low-rank (LoRA) GEMMs by `numpy.matmul`: one for each group of rows; for LoRA three and an epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from rlx.backends.cpu.context import Array, BindContext, Step
from rlx.backends.cpu.host.elementwise.evaluate import bind_trees
from rlx.backends.cpu.host.kernels import cpu_kernel
from rlx.backends.cpu.host.rows import working
from rlx.dtypes import as_dtype
from rlx.ir import Node, get_op
from rlx.ir import expr as ex
from rlx.ops.grouped import group_bounds
from rlx.ops.matmul import ACTIVATIONS


def _wide(x: Array, dtype: np.dtype[Any], steps: list[Step], ctx: BindContext) -> Array:
    """x as `dtype`; appends the conversion to `steps` where it needs one."""
    if x.dtype == dtype:
        return x
    result = ctx.scratch(x.shape, dtype)
    steps.append(partial(np.copyto, result, x, "unsafe"))
    return result


def _result(out: Array, ctx: BindContext) -> tuple[Array, list[Step]]:
    """An array in the working dtype for the GEMMs' results, and the calls that round it to the output."""
    dtype = working(out.dtype)
    if out.dtype == dtype:
        return out, []
    result = ctx.scratch(out.shape, dtype)
    return result, [partial(np.copyto, out, result, "unsafe")]


@cpu_kernel("grouped_matmul")
def bind_grouped(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    steps: list[Step] = []
    result, after = _result(outs[0], ctx)
    x, w = (_wide(t, result.dtype, steps, ctx) for t in ins[:2])
    w = np.swapaxes(w, 1, 2) if node.attrs["transpose_w"] else w
    sizes, rows = ins[2], x.shape[0]

    def run() -> None:
        stop = 0
        for e, (start, stop) in enumerate(group_bounds(sizes, rows)):
            if stop > start:
                np.matmul(x[start:stop], w[e], result[start:stop])
        result[stop:] = 0

    return [*steps, run, *after]


@cpu_kernel("grouped_matmul_grad")
def bind_grouped_grad(
    node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext
) -> list[Step]:
    steps: list[Step] = []
    result, after = _result(outs[0], ctx)
    x, d = (_wide(t, result.dtype, steps, ctx) for t in ins[:2])
    sizes, rows = ins[2], x.shape[0]

    def run() -> None:
        for e, (start, stop) in enumerate(group_bounds(sizes, rows)):
            np.matmul(x[start:stop].T, d[start:stop], result[e])

    return [*steps, run, *after]


@cpu_kernel("lora_matmul")
def bind_lora(node: Node, ins: Sequence[Array], outs: Sequence[Array], ctx: BindContext) -> list[Step]:
    out, k = outs[0], ins[0].shape[-1]
    dtype = working(out.dtype)
    steps: list[Step] = []
    x, w, a, b = (_wide(t, dtype, steps, ctx) for t in ins[:4])
    rows = int(np.prod(x.shape[:-1], dtype=np.int64))
    x = x.reshape(rows, k)
    whole, low = ctx.scratch((rows, w.shape[1]), dtype), ctx.scratch((rows, w.shape[1]), dtype)
    thin = ctx.scratch((rows, a.shape[1]), dtype)
    steps += [
        partial(np.matmul, x, w, whole),
        partial(np.matmul, x, a, thin),
        partial(np.matmul, thin, b, low),
    ]
    held = as_dtype(dtype)
    tree = ex.arg(0, held) + ex.arg(1, held) * node.attrs["scale"]
    operands = [whole, low]
    if len(ins) == 5:
        tree = tree + ex.cast(ex.arg(2, as_dtype(ins[4].dtype)), held)
        operands.append(ins[4])
    if node.attrs["activation"] is not None:
        name, attrs = ACTIVATIONS[node.attrs["activation"]]
        rule = get_op(name).expr
        assert rule is not None
        tree = rule([tree], attrs)
    tree = ex.cast(tree, as_dtype(out.dtype))
    return steps + bind_trees([tree], operands, [out.reshape(rows, w.shape[1])], ctx)
