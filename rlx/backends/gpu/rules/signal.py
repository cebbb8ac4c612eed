"""Lowering of frame, a strided copy, and of overlap_add."""

from __future__ import annotations

from rlx.backends.gpu.elementwise.strided import View, contiguous
from rlx.backends.gpu.program.casts import cast_ref, groups_for, native
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.rules.movement import move, moves_natively
from rlx.ir import Node

OVERLAP_ADD = declare(
    KernelDecl(
        "overlap_add",
        about="y = the sum of frames of x, each `hop` samples after the one before.",
        grid="a thread for each element of y, in groups of 256",
        # x (rows, count, length), y (rows, size), total = rows * size.
        args=(*reads(x="T"), *writes(y="T"), *uints("total", "size", "count", "length", "hop")),
        headers=("body64",),
        variants={"T": ("f32", "f64", "f16", "bf16")},
    )
)


@lowers("frame", when=moves_natively)
def lower_frame(ctx: Lowering, node: Node) -> None:
    """A strided copy in which two axes step through the same samples."""
    x, y = node.inputs[0], node.output
    strides = (*contiguous(x.shape)[:-1], node.attrs["hop"], 1)
    target = View(ctx.ref(y), ctx.storage(y), contiguous(y.shape))
    move(ctx, y.shape, View(ctx.ref(x), ctx.storage(x), strides), target)


@lowers("overlap_add", when=lambda node, features: native(node, features, with_f64=True))
def lower_overlap_add(ctx: Lowering, node: Node) -> None:
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    sizes = (y.shape[-1], *x.shape[-2:], node.attrs["hop"])
    ctx.launch(OVERLAP_ADD(T=stored.name), groups_for(ctx, y.size), [source, ctx.ref(y), y.size, *sizes])
