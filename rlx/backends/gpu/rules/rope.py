"""Lowering of rope."""

from __future__ import annotations

import math

from rlx.backends.gpu.program.casts import cast_ref, convert, groups_for, native, quads
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f32
from rlx.ir import Node

ROPE = declare(
    KernelDecl(
        "rope",
        about="Rotary position embedding of x (outer, seq, inner, d) by tables of `pairs` angles a position.",
        grid="a thread for each of `total` = outer * seq * inner * units",
        # x, cosine, sine, position, y (may be x), total, seq, inner, d, pairs, per, rows, offset, members.
        args=(
            *reads(x="T", cosine="f32", sine="f32", position="i32"),
            *writes(y="T"),
            *uints("total", "seq", "inner", "d", "pairs", "per", "rows", "offset", "members"),
        ),
        variants={"T": FLOATS},
        constants={"ALIGNED": False, "PAIRS": False, "POSITIONS": 0, "BACK": False},
        trials=((True, False, 0, False), (True, True, 3, True), (False, True, 2, False)),
    )
)


@lowers("rope", when=native)
def lower_rope(ctx: Lowering, node: Node) -> None:
    """A thread for each pair and for each element beyond the rotated width, or for four neighbouring ones if sizes and
    alignment allow."""
    x, cos, _, *positions = node.inputs
    y, attrs = node.output, node.attrs
    if y.size == 0:
        return
    pairs, d, axis, stored = cos.shape[1], x.shape[-1], attrs["axis"], ctx.storage(y)
    if pairs == 0:
        if ctx.storage(x) == stored:
            ctx.copy(ctx.ref(x), ctx.ref(y))
        else:
            convert(ctx, ctx.ref(x), ctx.storage(x), ctx.ref(y), stored, x.size)
        return
    per, rest = pairs // attrs["sections"], d - 2 * pairs
    source, target = cast_ref(ctx, ctx.ref(x), ctx.storage(x), stored, x.size), ctx.ref(y)
    tables = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), f32, t.size) for t in node.inputs[1:3]]
    whole = pairs % 2 == 0 if attrs["interleaved"] else per % 4 == 0
    aligned = int(whole and rest % 4 == 0) and quads(source, target, itemsize=stored.itemsize)
    aligned = aligned and quads(*tables, itemsize=4)
    turns = pairs // (2 if attrs["interleaved"] else 4) if aligned else pairs
    units = turns + (rest // 4 if aligned else rest)
    kind = {0: 1, 1: 2, 2: 3}[positions[0].ndim] if positions else 0
    place = ctx.ref(positions[0]) if positions else tables[0]  # never read without positions
    kernel = ROPE(
        T=stored.name, ALIGNED=aligned, PAIRS=attrs["interleaved"], POSITIONS=kind, BACK=attrs["inverse"]
    )
    seq, inner = x.shape[axis], math.prod(x.shape[axis + 1 : -1])
    total = x.size // d * units
    members = math.prod(x.shape[1:axis])
    args = [
        source,
        *tables,
        place,
        target,
        total,
        seq,
        inner,
        d,
        pairs,
        per,
        cos.shape[0],
        attrs["offset"],
        members,
    ]
    ctx.launch(kernel, groups_for(ctx, total), args)
