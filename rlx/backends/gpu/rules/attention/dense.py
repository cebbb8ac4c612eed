"""Lowering of attention and of its backward pass; attention/choice.py lists the candidates for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rlx.backends.gpu.attention.choice import (
    SCORES,
    Decode,
    Matrix,
    MatrixGradient,
    Problem,
    choose,
    choose_gradient,
    choose_gradient_of_sums,
    choose_with_sums,
    keeps_sums,
)
from rlx.backends.gpu.attention.problem import FROM_FORWARD, Attention, attention_of, attention_of_shapes
from rlx.backends.gpu.elementwise.strided import View, launch_tree
from rlx.backends.gpu.program.casts import cast_ref, fits, quads, stores
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, updates, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import FileKernel, Ref
from rlx.backends.gpu.program.target import Target
from rlx.dtypes import DType, bf16, f32
from rlx.ir import Node, Tensor, expr
from rlx.ops.attention.parts import NO_TOKENS, ByToken
from rlx.ops.attention.sums import separate_types

# Batch times heads, heads and KV heads, query and key lengths, head width; strides of the mask, whether each batch has
# its own length, the window.
_SIZES = ("count", "heads", "kv_heads", "sq", "sk", "d", "mb", "mh", "mq", "mk", "each", "window")
_ROWS = ("q_row", "k_row", "v_row")  # row strides of q, k and v in elements
_READS = reads(q="T", k="T", v="T", mask="M", lengths="i32")
_SCALE = floats("scale", "cap")
_FEW = (
    *_READS, *writes(y="T"), *updates(parts="f32", counters="u32"), *uints(*_SIZES, "splits"), *_SCALE
)  # fmt: skip
_MASKS = ("f32", "bool")
_VARIANTS = {"T": FLOATS, "M": _MASKS}
_CONSTANTS = {"WIDE": 2, "FLAGS": 0, "MASK": 0, "ALIGNED": False}
_TRIALS = ((4, 1, 0, True), (16, 8, 1, False), (1, 15, 2, True))
ATTENTION = declare(
    KernelDecl(
        "attention",
        about=(
            "softmax(q k^T * scale + mask) v: heads of d elements, rows q_row, k_row, v_row apart; strides of "
            "0 repeat."
        ),
        grid="a group of 256 for each 64 queries of each of `count` = b * heads heads",
        args=(*_READS, *writes(y="T"), *uints(*_SIZES, *_ROWS), *_SCALE),
        headers=("prims",),
        variants=_VARIANTS,
        constants=_CONSTANTS,
        trials=_TRIALS,
    )
)
ATTENTION_DECODE = declare(
    KernelDecl(
        "attention_decode",
        about=(
            "Attention of a few queries against many keys, in parts that the last workgroup adds up."
        ),
        grid=(
            "a group of 256 for each of `splits` parts of the keys of each block of ROWS query rows of each "
            "of b * kv_heads heads"
        ),
        args=_FEW,
        headers=("prims",),
        variants=_VARIANTS,
        constants={**_CONSTANTS, "ROWS": 1, "IN_PARTS": False},
        trials=((8, 8, 0, True, 4, True), (4, 15, 2, False, 8, False), (16, 1, 1, True, 1, True)),
    )
)
ATTENTION_STREAM = declare(
    KernelDecl(
        "attention_stream",
        about=(
            "Attention of a few queries against many keys by rows of sixteen bytes for each of LANES threads, in parts "
            "that the last workgroup adds up."
        ),
        grid=(
            "a group of 256 for each of `splits` parts of the keys of each block of ROWS query rows of each "
            "of b * kv_heads heads"
        ),
        args=_FEW,
        headers=("prims",),
        variants=_VARIANTS,
        constants={"FLAGS": 0, "MASK": 0, "LANES": 8, "ROWS": 1, "IN_PARTS": False},
        trials=((8, 0, 8, 4, True), (15, 2, 32, 8, False), (1, 1, 4, 1, True)),
        subgroups=True,
        unroll=True,
    )
)
ATTENTION_MMA = declare(
    KernelDecl(
        "attention_mma",
        about=(
            "softmax(q k^T * scale + mask) v by matrix instructions: heads of d elements, rows q_row, k_row, "
            "v_row apart."
        ),
        grid="a group of 128 for each 64 DEEP queries of each of `count` = b * heads heads",
        args=(*_READS, *writes(y="O"), *uints(*_SIZES, *_ROWS), *_SCALE),
        threads=128,
        function="attention_body",
        specific=("SCORES", 2),  # wgmma
        headers=("prims", "mma", "attention_words"),
        variants={
            "SMO": (
                "f16_f16_f16",
                "bf16_bf16_bf16",
                "f16_f16_f32",
                "bf16_bf16_f32",
                "f32_f16_f32",
                "f32_bf16_f32",
            ),
            "M": _MASKS,
        },
        constants={**_CONSTANTS, "DEEP": 1, "KEYS": 64, "SCORES": 1, "TERMS": 1},
        trials=(
            (8, 1, 0, True, 2, 64, 0, 1),
            (4, 15, 1, False, 1, 64, 1, 1),
            (16, 2, 2, True, 1, 32, 0, 1),
            (16, 8, 2, True, 1, 32, 1, 1),
            (8, 3, 0, True, 2, 64, 2, 1),
            (4, 12, 2, False, 1, 64, 2, 1),
        ),
        new_compiler=True,
    )
)
_SUMS_VARIANTS = {"SMO": ("bf16_bf16_bf16",), "M": _MASKS}
ATTENTION_SUMS_MMA = declare(
    replace(
        ATTENTION_MMA,
        stem="attention_sums_mma",
        about="attention_mma, and the binary logarithm of each row's sum of exp(score).",
        args=(*_READS, *writes(y="O", sums="f32"), *uints(*_SIZES, *_ROWS), *_SCALE),
        variants=_SUMS_VARIANTS,
        trials=((8, 1, 0, True, 2, 64, 0, 1), (4, 15, 1, False, 1, 64, 1, 1), (8, 3, 0, True, 2, 64, 2, 1)),
    )
)
ATTENTION_ROWS = declare(
    KernelDecl(
        "attention_rows",
        about="what attention_sums_dq_mma and attention_dkv_mma need of each query row: rows (3, count).",
        grid="a group of 256 for each 32 rows of `count` = b * heads * sq",
        args=(*reads(dy="T", y="T", sums="f32"), *writes(rows="f32"), *uints("count", "heads", "sq", "d")),
        headers=("prims",),
        variants={"T": ("f32", "bf16")},
        constants={"BY_TOKEN": False, "ALIGNED": False},
        trials=((False, True), (True, False)),
        subgroups=True,
    )
)
ATTENTION_DQ = declare(
    KernelDecl(
        "attention_dq",
        about=(
            "the gradient of the queries of attention, and per query row what attention_dkv needs: rows (3, "
            "count, sq)."
        ),
        grid="a group of 256 for each 64 queries of each of `count` = b * heads heads",
        args=(*reads(dy="T"), *_READS, *writes(dq="T", rows="f32"), *uints(*_SIZES), *_SCALE),
        headers=("prims",),
        variants=_VARIANTS,
        constants=_CONSTANTS,
        trials=_TRIALS,
    )
)
ATTENTION_SUMS_TILES = declare(
    replace(
        ATTENTION,
        stem="attention_sums_tiles",
        about="attention, and the binary logarithm of each row's sum of exp(score).",
        args=(*_READS, *writes(y="T", sums="f32"), *uints(*_SIZES, *_ROWS), *_SCALE),
        function="attention_body",
        variants={"T": ("f32",), "M": _MASKS},
    )
)
ATTENTION_SUMS_DQ = declare(
    replace(
        ATTENTION_DQ,
        stem="attention_sums_dq",
        about="the gradient of the queries of attention, from the rows of attention_rows.",
        args=(*reads(dy="T"), *_READS, *writes(dq="T"), *reads(rows="f32"), *uints(*_SIZES), *_SCALE),
        function="attention_dq_body",
        variants={"T": ("f32",), "M": _MASKS},
    )
)
ATTENTION_DKV = declare(
    KernelDecl(
        "attention_dkv",
        about="the gradients of the keys and values of attention, from the rows that attention_dq leaves.",
        grid="a group of 256 for each 64 keys of each of b * kv_heads heads",
        args=(
            *reads(dy="T"),
            *_READS,
            *reads(rows="f32"),
            *writes(dk="T", dv="T"),
            *uints(*_SIZES),
            *_SCALE,
        ),
        headers=("prims",),
        variants=_VARIANTS,
        constants=_CONSTANTS,
        trials=_TRIALS,
    )
)
_GRADIENT_MMA: dict[str, Any] = {
    "threads": 128,
    "headers": ("prims", "mma", "attention_words"),
    "variants": {
        "SMO": ("f16_f16_f16", "bf16_bf16_bf16", "bf16_bf16_f32"),
        "M": _MASKS,
    },
    "constants": {**_CONSTANTS, "DEEP": 1, "KEYS": 32, "SCORES": 1},
    "trials": (
        (8, 1, 0, True, 2, 32, 0), (4, 15, 1, False, 1, 64, 0), (4, 1, 2, True, 2, 64, 0), (4, 15, 2, True, 1, 32, 1),
        (8, 3, 0, True, 1, 64, 2), (4, 12, 2, False, 2, 64, 2),
    ),
    "specific": ("SCORES", 2),  # wgmma
    "new_compiler": True,
}
ATTENTION_DQ_MMA = declare(
    KernelDecl(
        "attention_dq_mma",
        about=(
            "the gradient of the queries of attention by matrix instructions, and per query row what attention_dkv_mma "
            "needs: rows (4, count, sq)."
        ),
        grid="a group of 128 for each 64 DEEP queries of each of `count` = b * heads heads",
        args=(*reads(dy="T"), *_READS, *writes(dq="O", rows="f32"), *uints(*_SIZES), *_SCALE),
        **_GRADIENT_MMA,
    )
)
ATTENTION_SUMS_DQ_MMA = declare(
    replace(
        ATTENTION_DQ_MMA,
        stem="attention_sums_dq_mma",
        about="the gradient of the queries of attention by matrix instructions, from the rows of attention_rows.",
        args=(*reads(dy="T"), *_READS, *writes(dq="O"), *reads(rows="f32"), *uints(*_SIZES), *_SCALE),
        function="attention_dq_mma_body",
        variants=_SUMS_VARIANTS,
        trials=((8, 1, 0, True, 2, 32, 0), (4, 15, 2, True, 1, 32, 1), (8, 3, 0, True, 1, 64, 2)),
    )
)
ATTENTION_DKV_MMA = declare(
    KernelDecl(
        "attention_dkv_mma",
        about=(
            "the gradients of the keys and values of attention by matrix instructions, from the rows that "
            "attention_dq_mma leaves."
        ),
        grid="a group of 128 for each 64 DEEP keys of each of b * kv_heads heads",
        args=(
            *reads(dy="T"),
            *_READS,
            *reads(rows="f32"),
            *writes(dk="O", dv="O"),
            *uints(*_SIZES),
            *_SCALE,
        ),
        **_GRADIENT_MMA,
    )
)

MAX_HEAD = 256  # the widest head that fits into registers
TILE = 64  # queries or keys of a workgroup
SHARE = 32  # rows of a workgroup of attention_rows


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    fine = all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))
    return fine and node.outputs[0].shape[3] <= MAX_HEAD


def kernel(decl: KernelDecl, stored: DType, of: Attention, aligned: int) -> FileKernel:
    """The variant of a kernel with f32 arithmetic, for operands stored as `stored`."""
    return decl(T=stored.name, M=of.mask_word, **of.constants(aligned))


@lowers("attention", when=_native)
def lower_attention(ctx: Lowering, node: Node) -> None:
    """Tiles, in f32 or by matrix instructions: one launch, a workgroup for each 64 or 128 queries of a head. Few
    queries: a workgroup for each part of the keys of a KV head; the last one to finish adds up the parts."""
    q, k, v = node.inputs[:3]
    y = node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    refs = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (q, k, v)]
    of = attention_of(ctx, node, q, k, node.inputs[3:])
    units = of.d * stored.itemsize % 16 == 0 and all(r.offset % 16 == 0 for r in refs)
    chosen = choose(ctx.target, of.problem(stored, ctx.precision, units))
    if isinstance(chosen, Matrix):
        _matrix(ctx, ATTENTION_MMA, of, refs, [ctx.ref(y)], stored, chosen)
        return
    aligned = int(of.d % 4 == 0) and quads(*refs, itemsize=stored.itemsize)
    if isinstance(chosen, Decode):
        shared = {"ROWS": chosen.rows, "IN_PARTS": chosen.splits > 1}
        if chosen.lanes:
            own = {"FLAGS": of.flags, "MASK": of.mask_kind, "LANES": chosen.lanes}
            decode = ATTENTION_STREAM(T=stored.name, M=of.mask_word, **own, **shared)
        else:
            decode = ATTENTION_DECODE(T=stored.name, M=of.mask_word, **of.constants(aligned), **shared)
        _decode(ctx, of, decode, refs, ctx.ref(y), chosen)
        return
    ctx.launch(
        kernel(ATTENTION, stored, of, aligned),
        ctx.groups(of.count * math.ceil(of.sq / TILE)),
        [*of.pointers(refs), ctx.ref(y), *of.sizes_and_rows()],
    )


def _decode(
    ctx: Lowering, of: Attention, kernel: FileKernel, refs: Sequence[Ref], target: Ref, chosen: Decode
) -> None:
    """The kernel for few queries."""
    mine, splits = of.heads // of.kv_heads * of.sq, chosen.splits
    blocks = of.batch * of.kv_heads * math.ceil(mine / chosen.rows)
    parts = ctx.scratch(splits * of.count * of.sq * (2 + of.d) * 4) if splits > 1 else target
    counters = ctx.counters(blocks) if splits > 1 else target
    ctx.launch(
        kernel, ctx.groups(blocks * splits), [*of.pointers(refs), target, parts, counters, *of.sizes(splits)]
    )


def _matrix(
    ctx: Lowering, decl: KernelDecl, of: Attention, refs: Sequence[Ref], results: Sequence[Ref], stored: DType,
    chosen: Matrix,
) -> None:  # fmt: skip
    """Tiles of matrix instructions, for 16-bit operands, and for f32 in sessions of a lower precision."""
    sizes = [of.sq * of.count, *[of.sk * of.batch * of.kv_heads] * 2]
    held = chosen.operands.type if chosen.operands.first else stored
    operands = [cast_ref(ctx, r, stored, held, n * of.d) for r, n in zip(refs, sizes, strict=True)]
    aligned = int(of.d % 8 == 0 and all(r.offset % 16 == 0 for r in (*operands, results[0])))
    constants = {**of.constants(aligned), **chosen.constants()}
    if chosen.scores == "warpgroup":
        constants["WIDE"] = math.ceil(constants["WIDE"] / 4) * 4
    ctx.launch(
        decl(SMO=chosen.operands.word(stored), M=of.mask_word, **constants),
        ctx.groups(of.count * math.ceil(of.sq / (64 * chosen.deep))),
        [*of.pointers(operands), *results, *of.sizes_and_rows()],
    )


@lowers("attention_grad", when=_native)
def lower_attention_grad(ctx: Lowering, node: Node) -> None:
    """Two launches. In the first, a workgroup for each tile of queries of a head computes dq and stores statistics of
    each row; in the second, a workgroup for each tile of keys of a KV head computes dk and dv from these. A tile has 64
    rows in f32, and 64 rows per matrix of a warp with matrix instructions, for which f32 operands are cast to 16 bits
    first."""
    dy, q, k, v = node.inputs[:4]
    grads = node.outputs
    stored = ctx.storage(grads[0])
    if k.size == 0 or q.size == 0:
        for t in grads:
            if t.size:
                _zero(ctx, ctx.ref(t), stored, t.size)
        return
    refs = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (dy, q, k, v)]
    of = attention_of(ctx, node, q, k, node.inputs[4:])
    rows = ctx.scratch(4 * of.count * of.sq * 4)
    dq, dk, dv = (ctx.ref(t) for t in grads)
    chosen = choose_gradient(ctx.target, of.problem(stored, ctx.precision, units=False))
    if isinstance(chosen, MatrixGradient):
        held = chosen.operands.type
        refs = [cast_ref(ctx, r, stored, held, t.size) for r, t in zip(refs, (dy, q, k, v), strict=True)]
        form = _form(of, chosen, f"{held}_{held}_{stored}", [*refs, dq, dk, dv])
        by_queries = ATTENTION_DQ_MMA(**form, DEEP=chosen.deep, KEYS=chosen.keys)
        by_keys = ATTENTION_DKV_MMA(**form, DEEP=chosen.deep_keys, KEYS=chosen.queries)
        tiles = TILE * chosen.deep, TILE * chosen.deep_keys
    else:
        aligned = int(of.d % 4 == 0) and quads(*refs, itemsize=stored.itemsize)
        by_queries, by_keys = (kernel(decl, stored, of, aligned) for decl in (ATTENTION_DQ, ATTENTION_DKV))
        tiles = TILE, TILE
    _by_queries_and_keys(ctx, of, refs, rows, (dq, dk, dv), (by_queries, by_keys), tiles)


def _form(of: Attention, chosen: MatrixGradient, word: str, refs: Sequence[Ref]) -> dict[str, str | int]:
    """The variant words and constants of both matrix kernels of a gradient."""
    aligned = int(of.d % 8 == 0 and all(r.offset % 16 == 0 for r in refs))
    constants = {**of.constants(aligned), "SCORES": SCORES.index(chosen.scores)}
    if chosen.scores == "warpgroup":
        constants["WIDE"] = math.ceil(constants["WIDE"] / 4) * 4
    return {"SMO": word, "M": of.mask_word, **constants}


def _by_queries_and_keys(
    ctx: Lowering, of: Attention, refs: Sequence[Ref], rows: Ref, grads: tuple[Ref, Ref, Ref],
    kernels: tuple[FileKernel, FileKernel], tiles: tuple[int, int],
) -> None:  # fmt: skip
    """The two launches of a gradient, whose workgroups compute so many queries and keys."""
    dq, dk, dv = grads
    ctx.launch(
        kernels[0],
        ctx.groups(of.count * math.ceil(of.sq / tiles[0])),
        [*of.pointers(refs), dq, rows, *of.sizes()],
    )
    ctx.launch(
        kernels[1],
        ctx.groups(of.batch * of.kv_heads * math.ceil(of.sk / tiles[1])),
        [*of.pointers(refs), rows, dk, dv, *of.sizes()],
    )


def _with_sums(node: Node, target: Target, first: int) -> bool:
    """Whether the matrix kernels run attention_sums, or its gradient; `first` is the first input that is an operand."""
    tensors = (*node.inputs, *node.outputs)
    q, k = separate_types(node.op.name, [t.type for t in node.inputs[first:]], node.attrs)[:2]
    wanted = bf16 if node.attrs["binary"] else f32  # the dtype whose kernels compute so
    if 0 in (*q.shape, *k.shape) or q.dtype != wanted or not fits(*(t.type for t in tensors)):
        return False
    if not all(stores(t.dtype, target.features) for t in tensors) or (node.attrs.get("kv_heads") and q.shape[3] % 8):
        return False
    (batch, heads, sq, d), (kv_heads, sk) = q.shape, k.shape[1:3]
    return d <= MAX_HEAD and keeps_sums(target, Problem(batch, heads, kv_heads, sq, sk, d, q.dtype, "f32"))


def _operands(ctx: Lowering, of: Attention, tensors: Sequence[Tensor]) -> list[Ref]:
    """Where q, k and v, or their gradients, lie: in one tensor or in three."""
    if not of.joined:
        return [ctx.ref(t) for t in tensors]
    ref, size = ctx.ref(tensors[0]), of.d * tensors[0].dtype.itemsize
    starts = [at * size for at in (0, of.heads, of.heads + of.kv_heads)]
    return [Ref(ref.segment, ref.offset + at, ref.nbytes - at) for at in starts]


def _attention_with_sums(ctx: Lowering, node: Node, first: int) -> Attention:
    q, k = separate_types(node.op.name, [t.type for t in node.inputs[first:]], node.attrs)[:2]
    others = node.inputs[first + (1 if node.attrs.get("kv_heads") else 3) :]
    of = attention_of_shapes(ctx, node, q.shape, k.shape, others, node.attrs.get("tokens", NO_TOKENS))
    return replace(of, flags=of.flags + FROM_FORWARD) if first else of


@lowers("attention_sums", on=lambda node, target: _with_sums(node, target, 0))
def lower_attention_sums(ctx: Lowering, node: Node) -> None:
    """Attention by tiles, in f32 or by matrix instructions, whose kernel also stores the sums of rows."""
    of, stored = _attention_with_sums(ctx, node, 0), node.outputs[0].dtype
    results, operands = [ctx.ref(t) for t in node.outputs], _operands(ctx, of, node.inputs[:3])
    chosen = choose_with_sums(ctx.target, of.problem(stored, "f32", units=False))
    if isinstance(chosen, Matrix):
        _matrix(ctx, ATTENTION_SUMS_MMA, of, operands, results, stored, chosen)
        return
    aligned = int(of.d % 4 == 0) and quads(*operands, itemsize=stored.itemsize)
    ctx.launch(
        kernel(ATTENTION_SUMS_TILES, stored, of, aligned),
        ctx.groups(of.count * math.ceil(of.sq / TILE)),
        [*of.pointers(operands), *results, *of.sizes_and_rows()],
    )


@lowers("attention_sums_grad", on=lambda node, target: _with_sums(node, target, 3))
def lower_attention_sums_grad(ctx: Lowering, node: Node) -> None:
    """Three launches: what is needed of each row, then the two of the gradient."""
    dy, y, sums = (ctx.ref(t) for t in node.inputs[:3])
    of = _attention_with_sums(ctx, node, 3)
    stored = node.outputs[0].dtype
    chosen = choose_gradient_of_sums(ctx.target, of.problem(stored, "f32", units=False))
    refs, grads = [dy, *_operands(ctx, of, node.inputs[3:6])], _operands(ctx, of, node.outputs)
    count = of.count * of.sq
    rows = ctx.scratch(3 * count * 4)
    aligned = of.d % 8 == 0 and all(r.offset % 16 == 0 for r in (dy, y))
    ctx.launch(
        ATTENTION_ROWS(T=stored.name, BY_TOKEN=ByToken.Y in of.tokens, ALIGNED=aligned),
        ctx.groups(math.ceil(count / SHARE)),
        [dy, y, sums, rows, count, of.heads, of.sq, of.d],
    )
    if isinstance(chosen, MatrixGradient):
        form = _form(of, chosen, f"{stored}_{stored}_{stored}", [*refs, *grads])
        by_queries = ATTENTION_SUMS_DQ_MMA(**form, DEEP=chosen.deep, KEYS=chosen.keys)
        by_keys = ATTENTION_DKV_MMA(**form, DEEP=chosen.deep_keys, KEYS=chosen.queries)
        tiles = TILE * chosen.deep, TILE * chosen.deep_keys
    else:
        quad = int(of.d % 4 == 0) and quads(*refs, *grads, itemsize=stored.itemsize)
        by_queries, by_keys = (kernel(decl, stored, of, quad) for decl in (ATTENTION_SUMS_DQ, ATTENTION_DKV))
        tiles = TILE, TILE
    _by_queries_and_keys(ctx, of, refs, rows, (grads[0], grads[1], grads[2]), (by_queries, by_keys), tiles)


def _zero(ctx: Lowering, ref: Ref, dtype: DType, n: int) -> None:
    launch_tree(ctx, [expr.lit(0.0, dtype)], (n,), [], [View(ref, dtype, (1,))])
