"""Lowering of attention_step: one launch rotates, writes the new rows, attends, and adds up the parts of the keys."""

from __future__ import annotations

import math

from rlx.backends.gpu.attention.choice import Problem, choose_step
from rlx.backends.gpu.gemm.kernels import PAIRS
from rlx.backends.gpu.program.casts import cast_ref, fits, stores
from rlx.backends.gpu.program.columns import TAKES, column_refs, takes_heads, whole_heads
from rlx.backends.gpu.program.kernel import KernelDecl, declare, floats, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f32
from rlx.ir import Node
from rlx.ops.attention.step import parts

ATTENTION_STEP = declare(
    KernelDecl(
        "attention_step",
        about="Attention of one query a head to a cache and its own key and value, which are written into the cache.",
        grid=(
            "a group of 256 for each of SPLITS parts of the keys of each block of ROWS heads of each of `count` = b * "
            "kv_heads key heads"
        ),
        args=(
            *reads(q="TA", k="TA", v="TA"),
            *updates(keys="TB", values="TB"),
            *reads(position="i32", cosine="f32", sine="f32", sinks="f32"),
            *writes(y="TA"),
            *updates(parts="f32", counters="u32"),
            *uints("count", "rows", "entries", "window"),
            *floats("scale", "cap"),
        ),
        headers=("prims",),
        variants={"AB": PAIRS},
        constants={
            "LANES": 8, "ROWS": 1, "SPLITS": 1, "TURNED": 0, "INTERLEAVED": False, "WINDOWED": False, "CAPPED": False,
            "SINKS": False, "RING": False, "KV_HEADS": 1, "SHARE": 1, "ACROSS": 0,
        },
        trials=(
            (8, 4, 16, 32, False, False, False, False, False, 8, 4, 48),
            (16, 2, 5, 24, True, True, True, True, True, 3, 2, 0),
            (32, 8, 1, 0, False, True, False, False, False, 1, 5, 7),
        ),
        subgroups=True,
        begins=True,
        unroll=True,
    )
)  # fmt: skip
_LANES = (2, 4, 8, 16, 32)  # allowed numbers of threads per row


def _native(node: Node, features: frozenset[str]) -> bool:
    """Whether the kernel has the dtypes, there are heads of q, a row is a power of two of 16-byte units, and the number
    of angles is a multiple of four."""
    q, keys = node.inputs[0], node.inputs[3]
    tables, _ = parts(node.inputs)
    tensors = (*node.inputs, *node.outputs)
    if f"{q.dtype}_{keys.dtype}" not in PAIRS or any(t.dtype != f32 or t.shape[1] % 4 for t in tables):
        return False
    units = q.shape[2] * keys.dtype.itemsize / 16
    fitting = units in _LANES and q.shape[1] > 0 and fits(*(t.type for t in tensors))
    return fitting and all(stores(t.dtype, features) for t in tensors)


@lowers("attention_step", when=_native)
def lower_attention_step(ctx: Lowering, node: Node) -> None:
    """One launch; caches that are not updated in place are copied first. Where q, k and v are columns of one matrix,
    they are read there."""
    q, _, _, keys, values, _ = node.inputs[:6]
    tables, sinks = parts(node.inputs)
    y, *caches = node.outputs
    for old, new in zip((keys, values), caches, strict=True):
        ctx.copy(ctx.ref(old), ctx.ref(new))
    if q.size == 0:
        return
    (batch, heads, size), (_, rows, kv_heads, _), attrs = q.shape, keys.shape, node.attrs
    stored, kept, window, cap = ctx.storage(y), ctx.storage(keys), attrs["window"], attrs["softcap"]
    seen = rows if window is None else min(window, rows)
    chosen = choose_step(
        ctx.target, Problem(batch, heads, kv_heads, 1, seen, size, kept, ctx.precision, units=True)
    )
    blocks = batch * kv_heads * math.ceil(heads // kv_heads / chosen.rows)
    columns = whole_heads(ctx, node)
    splits, pairs = chosen.splits, tables[0].shape[1] if tables else 0
    kernel = ATTENTION_STEP(
        AB=f"{stored}_{kept}", LANES=chosen.lanes, ROWS=chosen.rows, SPLITS=splits, TURNED=pairs,
        INTERLEAVED=attrs["interleaved"], WINDOWED=window is not None, CAPPED=cap is not None, SINKS=sinks is not None,
        RING=attrs["ring"], KV_HEADS=kv_heads, SHARE=heads // kv_heads,
        ACROSS=0 if columns is None else columns[0].shape[1] // size,
    )  # fmt: skip
    if columns is None:
        fresh = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in node.inputs[:3]]
    else:
        fresh = column_refs(ctx, columns, node.inputs[:3])
    angles = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), f32, t.size) for t in tables] or [fresh[0]] * 2
    extra = fresh[0] if sinks is None else cast_ref(ctx, ctx.ref(sinks), ctx.storage(sinks), f32, sinks.size)
    target = ctx.ref(y)
    partial = ctx.scratch(blocks * splits * chosen.rows * (size + 2) * 4) if splits > 1 else target
    counters = ctx.counters(blocks) if splits > 1 else target
    sizes = [batch * kv_heads, rows, tables[0].shape[0] if tables else 1]
    ctx.launch(
        kernel,
        ctx.groups(blocks * splits),
        [*fresh, *map(ctx.ref, caches), ctx.ref(node.inputs[5]), *angles, extra, target, partial, counters, *sizes,
         seen, float(attrs["scale"]), 0.0 if cap is None else cap],
    )  # fmt: skip


TAKES[lower_attention_step] = takes_heads
