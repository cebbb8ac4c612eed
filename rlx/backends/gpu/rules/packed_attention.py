"""Lowering of attention with few queries over 8-bit keys and values, which are not decoded to memory first."""

from __future__ import annotations

import math

from rlx.backends.gpu.attention.choice import FEW_QUERIES
from rlx.backends.gpu.attention.problem import BY_TOKEN, attention_of
from rlx.backends.gpu.program.casts import THREADS, cast_ref, fits, quads, stores
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.dtypes import f64
from rlx.ir import Node
from rlx.ops.attention.parts import ByToken

_LANES = (2, 4, 8, 16)  # threads of a key, sixteen elements each
_MIN_KEYS, _MAX_SPLITS = 128, 64  # keys of a part, and parts
# Batch times heads, heads and KV heads, keys; strides of the mask; `few_of`.
_SIZES = ("count", "heads", "kv_heads", "sk", "mb", "mh", "mq", "mk", "window", "few")
PACKED_ATTENTION = declare(
    KernelDecl(
        "packed_attention",
        about=(
            "Attention of a few queries against many keys of 8 bits, all (batch, length, heads, 16 LANES), or in pages "
            "that a table names: the result, or parts of it that cache_parts adds up."
        ),
        grid=(
            "a group of 256 for each of `splits` parts of the keys of each block of ROWS query rows of each "
            "of b * kv_heads heads"
        ),
        args=(
            *reads(q="T", k="b1", k_scales="f16", v="b1", v_scales="f16", mask="M", lengths="i32", table="i32"),
            *writes(y="T", parts="f32"), *uints(*_SIZES), *floats("scale", "cap"),
        ),
        headers=("prims",),
        variants={"T": FLOATS, "M": ("f32", "bool")},
        constants={"FLAGS": 0, "MASK": 0, "LANES": 4, "ROWS": 1, "IN_PARTS": False, "ALIGNED": False, "PAGE": 0},
        trials=((8, 0, 8, 4, True, True, 0), (15, 2, 2, 2, False, False, 0), (9, 0, 4, 1, True, True, 64)),
        subgroups=True,
        unroll=True,
    )
)  # fmt: skip


CACHE_PARTS = declare(
    KernelDecl(
        "cache_parts",
        about=(
            "The parts that packed_attention or paged_attention leaves, (splits, rows, 2) figures and (splits, rows, "
            "d) sums, added up in order."
        ),
        grid="a group of 256 for each 256 elements of the result",
        args=(*reads(parts="f32"), *writes(y="T"), *uints("rows", "d", "splits")),
        headers=("prims",),
        variants={"T": FLOATS},
        unroll=True,
    )
)


Q8_0_UPDATE = declare(
    KernelDecl(
        "q8_0_update",
        about="A token's row x of each sequence as integers and scales, in its row of a cache: `n` quads in all.",
        grid="a thread for each four elements",
        args=(
            *reads(x="T", position="i32"), *updates(codes="u32", scales="f16"), *uints("n", "quads", "rows"),
        ),
        headers=("prims",),
        variants={"T": FLOATS},
        constants={"X_QUADS": False},
        trials=((False,), (True,)),
    )
)  # fmt: skip


def few_of(splits: int, sq: int, each: int) -> int:
    """Parts, queries, and whether each sequence has its own length, packed into one word, since arguments may take 128
    bytes."""
    return splits | sq << 8 | each << 24


def reads_packed(node: Node, features: frozenset[str]) -> bool:
    """Whether the kernel supports a node's 8-bit keys, of which there must be at least one, and its queries."""
    tensors = (*node.inputs, *node.outputs)
    fine = all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))
    _, sq, _, d = node.inputs[0].shape
    return fine and sq <= FEW_QUERIES and d in tuple(16 * n for n in _LANES)


def _native(node: Node, features: frozenset[str]) -> bool:
    return reads_packed(node, features) and node.inputs[1].shape[1] > 0


@lowers("packed_attention", when=_native)
def lower_packed_attention(ctx: Lowering, node: Node) -> None:
    """A workgroup for each part of the keys of a KV head, and a launch that adds up the parts."""
    q, *packed = node.inputs[:5]
    y = node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    refs = [cast_ref(ctx, ctx.ref(q), ctx.storage(q), stored, q.size), *(ctx.ref(t) for t in packed)]
    of = attention_of(ctx, node, q, packed[0], node.inputs[5:], ByToken.Q | ByToken.K)
    mine = of.heads // of.kv_heads * of.sq
    rows = min(4, 1 << max(0, mine - 1).bit_length())
    blocks = of.batch * of.kv_heads * math.ceil(mine / rows)
    wanted = ctx.target.units // max(blocks, 1)
    splits = max(1, min(wanted, math.ceil(of.sk / _MIN_KEYS), _MAX_SPLITS))
    whole = of.count * of.sq
    parts = ctx.scratch(splits * whole * (2 + of.d) * 4) if splits > 1 else ctx.ref(y)
    kernel = PACKED_ATTENTION(
        T=stored.name, M=of.mask_word, FLAGS=of.flags % BY_TOKEN, MASK=of.mask_kind, LANES=of.d // 16, ROWS=rows,
        IN_PARTS=splits > 1, ALIGNED=all(refs[i].offset % 16 == 0 for i in (1, 3)), PAGE=0,
    )  # fmt: skip
    sizes = (of.count, of.heads, of.kv_heads, of.sk, *of.strides, of.window, few_of(splits, of.sq, of.each))
    ctx.launch(
        kernel,
        ctx.groups(blocks * splits),
        [*of.pointers(refs), refs[0], ctx.ref(y), parts, *sizes, of.scale, of.cap],
    )
    if splits > 1:
        groups = ctx.groups(math.ceil(whole * of.d / 256))
        ctx.launch(CACHE_PARTS(T=stored.name), groups, [parts, ctx.ref(y), whole, of.d, splits])


def _stored(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    fine = all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))
    return fine and node.inputs[0].dtype != f64


@lowers("q8_0_update", when=_stored)
def lower_q8_0_update(ctx: Lowering, node: Node) -> None:
    """One launch; a cache that is not updated in place is copied first."""
    x, codes, scales, position = node.inputs
    caches = [ctx.ref(t) for t in node.outputs]
    for old, new in zip((codes, scales), caches, strict=True):
        ctx.copy(ctx.ref(old), new)
    if x.size == 0:
        return
    source, stored = ctx.ref(x), ctx.storage(x)
    kernel = Q8_0_UPDATE(T=stored.name, X_QUADS=quads(source, itemsize=stored.itemsize))
    sizes = [x.size // 4, x.size // x.shape[0] // 4, codes.shape[1]]
    ctx.launch(kernel, ctx.groups(math.ceil(x.size / 4 / THREADS)), [source, ctx.ref(position), *caches, *sizes])
