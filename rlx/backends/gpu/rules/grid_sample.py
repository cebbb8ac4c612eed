"""Lowering of grid_sample."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import cast_ref, groups_for, native
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f32
from rlx.ir import Node
from rlx.ops.grid_sample import MODES, PADDINGS

GRID_SAMPLE = declare(
    KernelDecl(
        "grid_sample",
        about="y = x read at the places that grid names, between its elements too.",
        grid="a thread for each place of eight channels, in groups of 256",
        # x, grid (f32), meta (bodies/grid_sample.h), y, total.
        args=(*reads(x="T", grid="f32", meta="u32"), *writes(y="T"), *uints("total")),
        variants={"T": FLOATS},
        constants={"MODE": 0, "PADDING": 0, "ALIGNED": False, "DIMS": 2},
        trials=((0, 0, False, 3), (1, 1, True, 2), (2, 2, False, 2)),
    )
)


@lowers("grid_sample", when=native)
def lower_grid_sample(ctx: Lowering, node: Node) -> None:
    """One thread computes eight channels at one output position."""
    (x, grid), y = node.inputs, node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    source = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size)
    places = cast_ref(ctx, ctx.ref(grid), ctx.storage(grid), f32, grid.size)
    attrs, axes = node.attrs, x.ndim - 2
    sizes = (1, *x.shape[2:]) if axes == 2 else x.shape[2:]
    count = math.prod(y.shape[2:])
    total = x.shape[0] * math.ceil(x.shape[1] / 8) * count
    kernel = GRID_SAMPLE(
        T=stored.name,
        MODE=MODES.index(attrs["mode"]),
        PADDING=PADDINGS.index(attrs["padding"]),
        ALIGNED=attrs["align_corners"],
        DIMS=axes,
    )
    meta = ctx.block([x.shape[0], x.shape[1], *sizes, count])
    ctx.launch(kernel, groups_for(ctx, total), [source, places, meta, ctx.ref(y), total])
