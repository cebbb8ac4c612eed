"""Lowering of rope_update: one launch rotates q and k, and writes k and v into the caches."""

from __future__ import annotations

import math

from rlx.backends.gpu.gemm.kernels import PAIRS
from rlx.backends.gpu.program.casts import THREADS, cast_ref, fits, stores
from rlx.backends.gpu.program.columns import TAKES, column_refs, takes_heads, whole_heads
from rlx.backends.gpu.program.kernel import KernelDecl, declare, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f32
from rlx.ir import Node

ROPE_UPDATE = declare(
    KernelDecl(
        "rope_update",
        about="Rows of heads of q and k turned by the angles of their positions; k and v are written into caches.",
        grid="a thread for each of `total` quads of the heads of q, k and v of all tokens",
        args=(
            *reads(q="TA", k="TA", v="TA", rows="i32", position="i32", cosine="f32", sine="f32"),
            *writes(y="TB"),
            *updates(keys="TB", values="TB"),
            *uints("total", "length", "entries"),
        ),
        variants={"AB": PAIRS},
        constants={"SIZE": 64, "TURNED": 0, "INTERLEAVED": False, "KV_HEADS": 1, "SHARE": 1, "ACROSS": 0},
        trials=((64, 32, False, 8, 4, 48), (24, 8, True, 2, 3, 0)),
    )
)


def _native(node: Node, features: frozenset[str]) -> bool:
    """Whether the kernel has the dtypes, and heads and angles are whole quads."""
    q, keys, cos = node.inputs[0], node.inputs[3], node.inputs[7]
    if f"{q.dtype}_{keys.dtype}" not in PAIRS or cos.dtype != f32 or q.shape[2] % 4 or cos.shape[1] % 4:
        return False
    tensors = (*node.inputs, *node.outputs)
    return all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))


@lowers("rope_update", when=_native)
def lower_rope_update(ctx: Lowering, node: Node) -> None:
    """One launch; caches that are not updated in place are copied first. Where q, k and v are columns of one matrix,
    they are read there."""
    q, _, _, keys, values, rows, position, *tables = node.inputs
    y, *caches = node.outputs
    for old, new in zip((keys, values), caches, strict=True):
        ctx.copy(ctx.ref(old), ctx.ref(new))
    (tokens, heads, size), kv_heads = q.shape, keys.shape[1]
    total = tokens * (heads + 2 * kv_heads) * size // 4
    if total == 0:
        return
    stored, columns = ctx.storage(q), whole_heads(ctx, node)
    kernel = ROPE_UPDATE(
        AB=f"{stored}_{ctx.storage(y)}", SIZE=size, TURNED=tables[0].shape[1], INTERLEAVED=node.attrs["interleaved"],
        KV_HEADS=kv_heads, SHARE=heads // kv_heads, ACROSS=0 if columns is None else columns[0].shape[1] // size,
    )  # fmt: skip
    fresh = [*map(ctx.ref, node.inputs[:3])] if columns is None else column_refs(ctx, columns, node.inputs[:3])
    angles = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), f32, t.size) for t in tables]
    refs = [*fresh, ctx.ref(rows), ctx.ref(position), *angles, ctx.ref(y), *map(ctx.ref, caches)]
    ctx.launch(kernel, ctx.groups(math.ceil(total / THREADS)), [*refs, total, keys.shape[0], tables[0].shape[0]])


TAKES[lower_rope_update] = takes_heads
