"""Lowering of im2col."""

from __future__ import annotations

from rlx.backends.gpu.program.casts import cast_ref, fits, groups_for
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.rules.conv.reading import window_meta
from rlx.ir import Node

IM2COL = declare(
    KernelDecl(
        "im2col",
        about="y (lines, taps, positions) = the elements of x under every position of a window; moves bits.",
        grid="a thread for each unit of y, in groups of 256",
        # x, meta (bodies/im2col.h), y, total, units.
        args=(*reads(x="U", meta="u32"), *writes(y="U"), *uints("total", "units")),
        variants={"U": ("b1", "b2", "b4")},
    )
)

_FEATURE = {1: "8bit_storage", 2: "16bit_storage"}


def _movable(node: Node, features: frozenset[str]) -> bool:
    need = _FEATURE.get(node.output.dtype.itemsize)
    return (need is None or need in features) and fits(*(t.type for t in (*node.inputs, *node.outputs)))


@lowers("im2col", when=_movable)
def lower_im2col(ctx: Lowering, node: Node) -> None:
    """One thread copies each unit of the result, without conversion."""
    x, y = node.inputs[0], node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    kernel, attrs = node.attrs["kernel"], node.attrs
    counts = [
        (n + a + b - d * (k - 1) - 1) // s + 1
        for n, k, s, d, (a, b) in zip(
            x.shape[2:], kernel, attrs["strides"], attrs["dilations"], attrs["pads"], strict=True
        )
    ]
    unit = min(stored.itemsize, 4)
    units = stored.itemsize // unit
    meta = ctx.block(window_meta(x, counts, kernel, node))
    ctx.launch(
        IM2COL(U=f"b{unit}"),
        groups_for(ctx, y.size * units),
        [source, meta, ctx.ref(y), y.size * units, units],
    )
