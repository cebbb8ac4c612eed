"""Lowering of attention and of its backward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rlx.backends.gpu.attention.choice import decodes, forced, matrices_for, rows_for, shape_for, splits_for
from rlx.backends.gpu.elementwise.strided import View, launch_tree
from rlx.backends.gpu.program.casts import cast_ref, fits, quads, stores
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import FileKernel, Ref
from rlx.dtypes import DType, bf16, f32
from rlx.ir import Node, Tensor, expr
from rlx.ops.attention.parts import rest, swapped

# Batch times heads, heads, lengths, width; strides of the mask, whether each batch has its length, the window.
_SIZES = ("count", "heads", "kv_heads", "sq", "sk", "d", "mb", "mh", "mq", "mk", "each", "window")
_ROWS = ("q_row", "k_row", "v_row")  # elements from one row to the next
_VARIANTS = {"T": FLOATS, "M": ("f32", "bool")}
ATTENTION = declare(
    KernelDecl(
        "attention",
        about=(
            "softmax(q k^T * scale + mask) v: heads of d elements, rows q_row, k_row, v_row apart; strides of "
            "0 repeat."
        ),
        grid="a group of 256 for each 64 queries of each of `count` = b * heads heads",
        args=(
            *reads(q="T", k="T", v="T", mask="M", lengths="i32"),
            *writes(y="T"),
            *uints(*_SIZES, *_ROWS),
            *floats("scale", "cap"),
        ),
        headers=("prims",),
        variants=_VARIANTS,
        constants={"WIDE": 2, "FLAGS": 0, "MASK": 0, "ALIGNED": False},
        trials=((4, 1, 0, True), (16, 8, 1, False), (1, 15, 2, True)),
    )
)
ATTENTION_DECODE = declare(
    KernelDecl(
        "attention_decode",
        about=(
            "Attention of a few queries against many keys: the result, or parts of it that attention_combine "
            "adds up."
        ),
        grid=(
            "a group of 256 for each of `splits` parts of the keys of each block of ROWS query rows of each "
            "of b * kv_heads heads"
        ),
        args=(
            *reads(q="T", k="T", v="T", mask="M", lengths="i32"),
            *writes(y="T", parts="f32"),
            *uints(*_SIZES, *_ROWS, "splits"),
            *floats("scale", "cap"),
        ),
        headers=("prims",),
        variants=_VARIANTS,
        constants={"WIDE": 2, "FLAGS": 0, "MASK": 0, "ALIGNED": False, "ROWS": 1, "IN_PARTS": False},
        trials=((8, 8, 0, True, 4, True), (4, 15, 2, False, 8, False), (16, 1, 1, True, 1, True)),
    )
)
ATTENTION_COMBINE = declare(
    KernelDecl(
        "attention_combine",
        about=(
            "The parts that attention_decode leaves, (splits, rows, 2) figures and (splits, rows, d) sums, "
            "added up in order."
        ),
        grid="a group of 256 for each 256 columns of each row",
        args=(*reads(parts="f32"), *writes(y="T"), *uints("rows", "d", "splits")),
        headers=("prims",),
        variants={"T": FLOATS},
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
        args=(
            *reads(q="T", k="T", v="T", mask="M", lengths="i32"),
            *writes(y="O"),
            *uints(*_SIZES, *_ROWS),
            *floats("scale", "cap"),
        ),
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
            "M": ("f32", "bool"),
        },
        constants={
            "WIDE": 2,
            "FLAGS": 0,
            "MASK": 0,
            "ALIGNED": False,
            "DEEP": 1,
            "KEYS": 64,
            "SCORES": 1,
            "TERMS": 1,
        },
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
ATTENTION_DQ = declare(
    KernelDecl(
        "attention_dq",
        about=(
            "the gradient of the queries of attention, and per query row what attention_dkv needs: rows (3, "
            "count, sq)."
        ),
        grid="a group of 256 for each 64 queries of each of `count` = b * heads heads",
        args=(
            *reads(dy="T", q="T", k="T", v="T", mask="M", lengths="i32"),
            *writes(dq="T", rows="f32"),
            *uints(*_SIZES),
            *floats("scale", "cap"),
        ),
        headers=("prims",),
        variants=_VARIANTS,
        constants={"WIDE": 2, "FLAGS": 0, "MASK": 0, "ALIGNED": False},
        trials=((4, 1, 0, True), (16, 8, 1, False), (1, 15, 2, True)),
    )
)
ATTENTION_DKV = declare(
    KernelDecl(
        "attention_dkv",
        about="the gradients of the keys and values of attention, from the rows that attention_dq leaves.",
        grid="a group of 256 for each 64 keys of each of b * kv_heads heads",
        args=(
            *reads(dy="T", q="T", k="T", v="T", mask="M", lengths="i32", rows="f32"),
            *writes(dk="T", dv="T"),
            *uints(*_SIZES),
            *floats("scale", "cap"),
        ),
        headers=("prims",),
        variants=_VARIANTS,
        constants={"WIDE": 2, "FLAGS": 0, "MASK": 0, "ALIGNED": False},
        trials=((4, 1, 0, True), (16, 8, 1, False), (1, 15, 2, True)),
    )
)

MAX_HEAD = 256  # what the registers hold of a head's width
TILE = 64  # queries or keys a group
CAUSAL, WINDOW, CAPPED, COUNTED = 1, 2, 4, 8  # flags of the kernels' constant FLAGS
BY_TOKEN = {"q": 16, "k": 32, "v": 64, "y": 128}  # too, by the letters of the attribute `tokens`


def _native(node: Node, features: frozenset[str]) -> bool:
    tensors = (*node.inputs, *node.outputs)
    fine = all(stores(t.dtype, features) for t in tensors) and fits(*(t.type for t in tensors))
    return fine and node.outputs[0].shape[3] <= MAX_HEAD


@dataclass(frozen=True, slots=True)
class Problem:
    """What every attention kernel is told: sizes, constants, and where mask and lengths are."""

    batch: int
    heads: int
    kv_heads: int
    sq: int
    sk: int
    d: int
    flags: int
    mask_kind: int
    mask_word: str
    mask: Ref | None
    strides: tuple[int, int, int, int]
    lengths: Ref | None
    each: int
    window: int
    scale: float
    cap: float
    tokens: str = ""

    @property
    def count(self) -> int:
        return self.batch * self.heads

    def constants(self, aligned: int) -> dict[str, int]:
        """Constants of every attention kernel."""
        wide = max(1, math.ceil(self.d / 16))
        return {"WIDE": wide, "FLAGS": self.flags, "MASK": self.mask_kind, "ALIGNED": aligned}

    def sizes(self) -> list[int | float]:
        """The scalar arguments of the gradient's kernels, as their declarations list them."""
        whole = [self.count, self.heads, self.kv_heads, self.sq, self.sk, self.d, *self.strides, self.each]
        return [*whole, self.window, self.scale, self.cap]

    def sizes_and_rows(self, *more: int) -> list[int | float]:
        """The scalar arguments of the others: how far apart the rows of q, k and v lie too, and `more`."""
        *whole, scale, cap = self.sizes()
        named = zip("qkv", (self.heads, self.kv_heads, self.kv_heads), strict=True)
        rows = [heads * self.d if letter in self.tokens else self.d for letter, heads in named]
        return [*whole, *rows, *more, scale, cap]


def problem_of(ctx: Lowering, node: Node, q: Tensor, k: Tensor, others: Sequence[Tensor]) -> Problem:
    """A node's problem; a mask stored in a half is cast to f32 here."""
    tokens: str = node.attrs.get("tokens", "")
    batch, heads, sq, d = swapped(q.shape) if "q" in tokens else q.shape
    kv_heads, sk = (swapped(k.shape) if "k" in tokens else k.shape)[1:3]
    mask, lengths = rest(node.op.name, others)
    window, cap = node.attrs.get("window"), node.attrs.get("softcap")
    flags = CAUSAL * node.attrs["causal"] + WINDOW * (window is not None)
    flags += CAPPED * (cap is not None) + COUNTED * (lengths is not None)
    flags += sum(BY_TOKEN[letter] for letter in tokens)
    kind, word, held, strides = 0, "f32", None, (0, 0, 0, 0)
    if mask is not None:
        held, kind = ctx.ref(mask), 1 if mask.dtype.kind == "b" else 2
        word = ctx.storage(mask).name
        if word not in ("bool", "f32"):
            held, word = cast_ref(ctx, held, ctx.storage(mask), f32, mask.size), "f32"
        strides = _strides(mask.shape)
    return Problem(
        batch, heads, kv_heads, sq, sk, d, flags, kind, word, held, strides,
        None if lengths is None else ctx.ref(lengths), int(lengths is not None and lengths.size > 1),
        min(window or 0, sq + sk), float(node.attrs["scale"]), float(cap or 0.0), tokens,
    )  # fmt: skip


def kernel(decl: KernelDecl, stored: DType, problem: Problem, aligned: int) -> FileKernel:
    """The variant of a kernel for f32 arithmetic."""
    return decl(T=stored.name, M=problem.mask_word, **problem.constants(aligned))


@lowers("attention", when=_native)
def lower_attention(ctx: Lowering, node: Node) -> None:
    """Tiles, of f32 or of matrix instructions: one launch, a group for each 64 or 128 queries of a head. Few queries: a
    group for each part of the keys of a key head, and a launch that adds up the parts."""
    q, k, v = node.inputs[:3]
    y = node.output
    if y.size == 0:
        return
    stored = ctx.storage(y)
    refs = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (q, k, v)]
    problem = problem_of(ctx, node, q, k, node.inputs[3:])
    aligned = int(problem.d % 4 == 0) and quads(*refs, itemsize=stored.itemsize)
    if decodes(problem.sq) and problem.sk:
        _decode(ctx, problem, refs, ctx.ref(y), stored, aligned)
        return
    if _matrix(ctx, problem, refs, ctx.ref(y), stored):
        return
    groups = ctx.groups(problem.count * math.ceil(problem.sq / TILE))
    mask, lengths = problem.mask or refs[0], problem.lengths or refs[0]
    ctx.launch(
        kernel(ATTENTION, stored, problem, aligned),
        groups,
        [*refs, mask, lengths, ctx.ref(y), *problem.sizes_and_rows()],
    )


def _decode(
    ctx: Lowering, problem: Problem, refs: Sequence[Ref], target: Ref, stored: DType, aligned: int
) -> None:
    mine = problem.heads // problem.kv_heads * problem.sq
    rows = rows_for(mine, problem.d, problem.batch * problem.kv_heads, problem.sk)
    blocks = problem.batch * problem.kv_heads * math.ceil(mine / rows)
    splits = splits_for(blocks, problem.sk)
    constants = {**problem.constants(aligned), "ROWS": rows, "IN_PARTS": splits > 1}
    whole = problem.count * problem.sq
    parts = ctx.scratch(splits * whole * (2 + problem.d) * 4) if splits > 1 else target
    mask, lengths = problem.mask or refs[0], problem.lengths or refs[0]
    ctx.launch(
        ATTENTION_DECODE(T=stored.name, M=problem.mask_word, **constants),
        ctx.groups(blocks * splits),
        [*refs, mask, lengths, target, parts, *problem.sizes_and_rows(splits)],
    )
    if splits > 1:
        ctx.launch(
            ATTENTION_COMBINE(T=stored.name),
            ctx.groups(whole * math.ceil(problem.d / 256)),
            [parts, target, whole, problem.d, splits],
        )


def _matrix(ctx: Lowering, problem: Problem, refs: Sequence[Ref], target: Ref, stored: DType) -> bool:
    """Tiles of matrix instructions, for halves, and for f32 in sessions of a lower precision; False where the device
    has none of this type, or no room."""
    made = matrices_for(stored, ctx.precision, problem.sq)
    if (
        made is None
        or forced().way not in (None, "matrix")
        or not problem.sk
        or not has_matrices(ctx, made.type)
    ):
        return False
    if made.terms > 1 and ctx.backend != "cuda" and forced().way is None:
        return False  # three products for one, through shared memory, take longer than one in f32
    limits = ctx.limits
    shape = shape_for(
        problem.count, problem.sq, problem.d, ctx.backend != "cuda",
        max(limits.shared_bytes, limits.dynamic_shared_bytes), made.terms, "wgmma" in ctx.features,
    )  # fmt: skip
    if shape is None:
        return False
    sizes = [problem.sq * problem.count, *[problem.sk * problem.batch * problem.kv_heads] * 2]
    held = made.type if made.first else stored
    given = [cast_ref(ctx, r, stored, held, n * problem.d) for r, n in zip(refs, sizes, strict=True)]
    aligned = int(problem.d % 8 == 0 and all(r.offset % 16 == 0 for r in (*given, target)))
    constants = {**problem.constants(aligned), **shape.constants()}
    if shape.warpgroup:
        constants["WIDE"] = math.ceil(constants["WIDE"] / 4) * 4
    mask, lengths = problem.mask or given[0], problem.lengths or given[0]
    ctx.launch(
        ATTENTION_MMA(SMO=made.word(stored), M=problem.mask_word, **constants),
        ctx.groups(problem.count * math.ceil(problem.sq / (64 * shape.deep))),
        [*given, mask, lengths, target, *problem.sizes_and_rows()],
    )
    return True


def has_matrices(ctx: Lowering, half: DType) -> bool:
    """Whether the device multiplies 16 x 16 matrices of that half into f32, in groups of 32 threads that shuffle."""
    words = {"subgroup", "coopmat"} | ({"bf16_coopmat"} if half == bf16 else set())
    return words <= ctx.features and ctx.limits.subgroup == 32


@lowers("attention_grad", when=_native)
def lower_attention_grad(ctx: Lowering, node: Node) -> None:
    """Two launches: a group for each 64 queries of a head makes dq and leaves three numbers a row, with which a group
    for each 64 keys of a key head makes dk and dv."""
    dy, q, k, v = node.inputs[:4]
    made = node.outputs
    stored = ctx.storage(made[0])
    if k.size == 0 or q.size == 0:
        for t in made:
            if t.size:
                _zero(ctx, ctx.ref(t), stored, t.size)
        return
    refs = [cast_ref(ctx, ctx.ref(t), ctx.storage(t), stored, t.size) for t in (dy, q, k, v)]
    problem = problem_of(ctx, node, q, k, node.inputs[4:])
    aligned = int(problem.d % 4 == 0) and quads(*refs, itemsize=stored.itemsize)
    mask, lengths = problem.mask or refs[0], problem.lengths or refs[0]
    rows = ctx.scratch(3 * problem.count * problem.sq * 4)
    dq, dk, dv = (ctx.ref(t) for t in made)
    ctx.launch(
        kernel(ATTENTION_DQ, stored, problem, aligned),
        ctx.groups(problem.count * math.ceil(problem.sq / TILE)),
        [*refs, mask, lengths, dq, rows, *problem.sizes()],
    )
    ctx.launch(
        kernel(ATTENTION_DKV, stored, problem, aligned),
        ctx.groups(problem.batch * problem.kv_heads * math.ceil(problem.sk / TILE)),
        [*refs, mask, lengths, rows, dk, dv, *problem.sizes()],
    )


def _zero(ctx: Lowering, ref: Ref, dtype: DType, n: int) -> None:
    launch_tree(ctx, [expr.lit(0.0, dtype)], (n,), [], [View(ref, dtype, (1,))])


def _strides(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
    """Element strides over (batch, head, query, key); 0 where the mask is repeated."""
    full = (1,) * (4 - len(shape)) + shape
    strides, step = [], 1
    for n in reversed(full):
        strides.append(step if n > 1 else 0)
        step *= n
    b, h, i, j = reversed(strides)
    return b, h, i, j
