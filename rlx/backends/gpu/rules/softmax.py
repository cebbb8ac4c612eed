"""Lowering of softmax, its gradient, log_softmax and logsumexp: rows in registers where the axis is the last, else
columns of (outer, n, inner)."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import cast_ref, native, quads
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.rules.rows import eights, lines_of, power, row_groups, row_kernels, row_shape
from rlx.ir import Node

SOFTMAX = declare(
    KernelDecl(
        "softmax",
        about="Softmax over the last axis of x (rows, n).",
        grid="a group of 256 for each 256 / LANES rows",
        # x, y (may be x), rows, n.
        args=(*reads(x="T"), *writes(y="T"), *uints("rows", "n")),
        headers=("rounding", "prims"),
        variants={"T": FLOATS},
        constants={"LANES": 32, "QUADS_HELD": 1, "VECTORS": 0},
        trials=((32, 3, 1), (128, 8, 2), (256, 0, 0)),
        subgroups=True,
    )
)
SOFTMAX_AXIS = declare(
    KernelDecl(
        "softmax_axis",
        about="Softmax over the middle axis of x (outer, n, inner).",
        grid="a group of 256 for each ACROSS places of inner, for each of outer",
        # x, y (may be x), outer, n, inner.
        args=(*reads(x="T"), *writes(y="T"), *uints("outer", "n", "inner")),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"ACROSS": 32},
        trials=((32,),),
    )
)


@lowers("softmax", when=native)
def lower_softmax(ctx: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    outer, n, inner = lines_of(x, node.attrs["axis"])
    stored = ctx.storage(y)
    source, target = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size), ctx.ref(y)
    if inner == 1:
        aligned = int(n % 4 == 0) and quads(source, target, itemsize=stored.itemsize)
        shape = eights(row_shape(n, outer, aligned), n, outer, ((source, stored), (target, stored)))
        kernel = SOFTMAX(T=stored.name, **shape)
        ctx.launch(kernel, row_groups(ctx, outer, shape), [source, target, outer, n])
    else:
        across = min(32, power(inner))
        kernel = SOFTMAX_AXIS(T=stored.name, ACROSS=across)
        groups = ctx.groups(outer * math.ceil(inner / across))
        ctx.launch(kernel, groups, [source, target, outer, n, inner])

row_kernels("softmax_grad", "d y -> dx", functions=False)
row_kernels("log_softmax", "x -> y")
row_kernels("logsumexp", "x -> y")
