"""Lowering of attention with few queries over paged keys and values, which are read in place."""

from __future__ import annotations

import math

from rlx.backends.gpu.attention.choice import FEW_QUERIES
from rlx.backends.gpu.attention.problem import CAPPED, CAUSAL, COUNTED, WINDOW
from rlx.backends.gpu.program.casts import cast_ref, fits, stores
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.rules.packed_attention import CACHE_PARTS, PACKED_ATTENTION, few_of, reads_packed
from rlx.dtypes import f32, f64
from rlx.ir import Node

_LANES = (1, 2, 4, 8, 16, 32)  # threads of a key, sixteen bytes each
_MIN_KEYS, _MAX_SPLITS = 128, 64  # keys of a part, and parts
_MEMBERS = (4, 2)  # sequences of a workgroup where there are many: all run at once, and each reads more at a time
PAGED_ATTENTION = declare(
    KernelDecl(
        "paged_attention",
        about=(
            "Attention of a few queries against the keys of pages that a table names, all (…, heads, D): the result, "
            "or parts of it that cache_parts adds up."
        ),
        grid=(
            "a group of 256 for each of `splits` parts of the keys of each block of ROWS query rows of each "
            "head of MEMBERS of the b sequences"
        ),
        args=(
            *reads(q="T", k="T", v="T", table="i32", lengths="i32"), *writes(y="T", parts="f32"),
            *uints("count", "heads", "kv_heads", "sq", "pages", "n_pages", "window", "splits"), *floats("scale", "cap"),
        ),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"FLAGS": 8, "PAGE": 64, "LANES": 4, "ROWS": 1, "IN_PARTS": False, "ALIGNED": False, "MEMBERS": 1},
        trials=((8, 64, 8, 4, True, True, 4), (15, 7, 2, 2, False, False, 1), (9, 16, 32, 1, True, True, 2)),
        subgroups=True,
        unroll=True,
    )
)  # fmt: skip


def _lanes(node: Node) -> int:
    q = node.inputs[0]
    return q.shape[3] * q.dtype.itemsize // 16 if q.shape[3] * q.dtype.itemsize % 16 == 0 else 0


def _native(node: Node, features: frozenset[str]) -> bool:
    if 0 in (node.inputs[1].size, node.inputs[3].size):
        return False
    if node.inputs[5:]:
        return reads_packed(node, features)
    tensors = (*node.inputs, *node.outputs)
    fine = all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))
    few = node.inputs[0].shape[1] <= FEW_QUERIES and node.inputs[0].dtype != f64
    return fine and few and _lanes(node) in _LANES


@lowers("paged_attention", when=_native)
def lower_paged_attention(ctx: Lowering, node: Node) -> None:
    """A workgroup for each part of the keys of a KV head, and a launch that adds up the parts."""
    q, k, v, table, lengths, *scales = node.inputs
    y = node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    refs = [cast_ref(ctx, ctx.ref(q), ctx.storage(q), stored, q.size)]
    if scales:
        refs += [ctx.ref(t) for pair in zip((k, v), scales, strict=True) for t in pair]
    else:
        refs += [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (k, v)]
    (batch, sq, heads, d), (pages, rows_of_page, kv_heads, _) = q.shape, k.shape
    mine, cap = heads // kv_heads * sq, node.attrs["softcap"]
    keys = table.shape[1] * rows_of_page
    rows = min(8 if stored == f32 and not scales else 4, 1 << max(0, mine - 1).bit_length())
    blocks = kv_heads * math.ceil(mine / rows)
    members = 1 if scales else next((n for n in _MEMBERS if batch // n * blocks >= ctx.target.units // 2), 1)
    blocks *= math.ceil(batch / members)
    splits = max(1, min(ctx.target.units // max(blocks, 1), math.ceil(keys / _MIN_KEYS), _MAX_SPLITS))
    whole = batch * heads * sq
    parts = ctx.scratch(splits * whole * (2 + d) * 4) if splits > 1 else ctx.ref(y)
    windowed, attrs = node.attrs["window"] is not None, (float(node.attrs["scale"]), float(cap or 0.0))
    flags = COUNTED + CAUSAL * node.attrs["causal"] + WINDOW * windowed + CAPPED * (cap is not None)
    window = min(node.attrs["window"] or 0, sq + keys)
    if scales:
        kernel = PACKED_ATTENTION(
            T=stored.name, M="f32", FLAGS=flags, MASK=0, LANES=d // 16, ROWS=rows, IN_PARTS=splits > 1,
            ALIGNED=all(refs[i].offset % 16 == 0 for i in (1, 3)), PAGE=rows_of_page,
        )  # fmt: skip
        sizes = [batch * heads, heads, kv_heads, keys, pages, 0, 0, 0, window, few_of(splits, sq, 1)]
        pointers = [*refs, refs[0], ctx.ref(lengths), ctx.ref(table), ctx.ref(y), parts]
    else:
        kernel = PAGED_ATTENTION(
            T=stored.name, FLAGS=flags, PAGE=rows_of_page, LANES=d * stored.itemsize // 16, ROWS=rows,
            IN_PARTS=splits > 1, ALIGNED=all(r.offset % 16 == 0 for r in refs[1:]), MEMBERS=members,
        )  # fmt: skip
        sizes = [batch * heads, heads, kv_heads, sq, pages, table.shape[1], window, splits]
        pointers = [*refs, ctx.ref(table), ctx.ref(lengths), ctx.ref(y), parts]
    ctx.launch(kernel, ctx.groups(blocks * splits), [*pointers, *sizes, *attrs])
    if splits > 1:
        groups = ctx.groups(math.ceil(whole * d / 256))
        ctx.launch(CACHE_PARTS(T=stored.name), groups, [parts, ctx.ref(y), whole, d, splits])
