"""Lowering of packed weights: dequantize, and products that read the packed blocks themselves.

Products of few rows never write a dequantized weight. Wider ones, and those with the weight the other way round, decode
it tile by tile into workspace of bounded size.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from rlx.backends.gpu.elementwise.strided import View, contiguous, launch_tree
from rlx.backends.gpu.gemm.choice import FMA_TILES, LONG_SUM
from rlx.backends.gpu.gemm.launch import CODE, product
from rlx.backends.gpu.gemm.operands import Epilogue, Operand, ProductCall, from_
from rlx.backends.gpu.gemm.packed import (
    COLUMNS,
    ROWS,
    DecodedTiles,
    PackedDirect,
    PackedFew,
    PackedMatrix,
    PackedProblem,
    PackedRows,
    PackedVector,
    choose_packed,
    scale_groups,
)
from rlx.backends.gpu.gemm.product import Product
from rlx.backends.gpu.program.casts import THREADS, convert, fits, quads, stores
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering, lowers
from rlx.backends.gpu.program.steps import Arg, Ref
from rlx.backends.gpu.rules.grouped import MATMUL_GROUPED
from rlx.dtypes import PACKED, DType, bf16, f16, f32
from rlx.ir import Leaf, Node, Tensor, expr
from rlx.packed.codebooks import codebook

# What the kernels know of a packed dtype, in the order of their constants: see packed.h.
_LAYOUT = ("FORMAT", "BLOCK", "SIZE0", "AT1", "AT2", "AT3", "RUNS", "BOOK_WORDS", "ALIGN")
# The numbers of the formats; blocks of another length are not another format.
FORMATS = tuple(name for name in PACKED if not name.endswith("_128"))
# Bytes of the quants of a chunk make so many runs of 16 elements; none in formats without chunks.
_ONE_RUN = frozenset({"q8_0", "int8", "int8_zp", "fp8_e4m3", "fp8_e5m2"})
_FOUR_RUNS = frozenset({"q2_k", "q3_k", "tq2_0"})
_BOOKED = ("iq1", "iq2", "iq3")  # how the names of formats with a codebook begin
_NO_RUNS = frozenset({"tq1_0", "nvfp4", *(n for n in PACKED if n.startswith(_BOOKED))})
_TILE_BYTES = 64 << 20  # of a weight that is decoded into workspace,
_HALF_TILE_BYTES = 256 << 20  # into halves, whose products need many columns to fill a device
_MOST_DECODED = 1 << 30  # bytes of the weights of experts that are decoded for a product the other way round


def layout(dtype: DType, align: int) -> dict[str, int]:
    """The constants of the kernels for a packed dtype whose rows begin at multiples of `align` bytes."""
    name, storage = dtype.name.removesuffix("_128"), dtype.storage
    ends = np.cumsum([plane.nbytes for plane in storage.planes]).tolist()
    at = (*ends, *ends[-1:] * 3)[:3]
    runs = 1 if name in _ONE_RUN else 4 if name in _FOUR_RUNS else 0 if name in _NO_RUNS else 2
    words = _book(name).shape[1] // 4 if runs == 0 else 0
    values = (FORMATS.index(name), storage.elements, storage.planes[0].nbytes, *at, runs, words, align)
    return dict(zip(_LAYOUT, values, strict=True))


@cache
def _book(name: str) -> npt.NDArray[np.int8]:
    """The codebook of a format, one entry of zeros where it has none."""
    if not name.startswith(_BOOKED):
        return np.zeros((1, 4), np.int8)
    return codebook("iq1" if name.startswith("iq1") else name)


def _scales(dtype: DType) -> dict[str, int]:
    """The constants of packed_mma for a packed dtype: how many scales a chunk has, and whether two share them."""
    name = dtype.name.removesuffix("_128")
    own = name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
    runs = layout(dtype, 1)["RUNS"]
    return {"SCALES": runs if own else 1, "IN_PAIRS": runs == 1 or name in ("q4_k", "q5_k", "tq2_0")}


def _steps(dtype: DType, span: int) -> dict[str, int]:
    """The same of packed_matrix, the length of a step, and whether there are minimums or zeros."""
    name = dtype.name.removesuffix("_128")
    lows = int(name.endswith("_zp") or name in ("q4_1", "q5_1", "q2_k", "q4_k", "q5_k"))
    return {**_scales(dtype), "SPAN": span, "LOWS": lows}


def _trial(name: str, align: int) -> tuple[int, ...]:
    return tuple(layout(PACKED[name], align).values())


_CONSTANTS = dict.fromkeys(_LAYOUT, 0) | layout(PACKED["q4_0"], 1)
DEQUANTIZE = declare(
    KernelDecl(
        "dequantize",
        about="y (rows, blocks * BLOCK) = the elements of packed rows q, `pitch` bytes apart; book: the codebook.",
        grid="a thread for each 16 bytes of quants, or each 8 elements",
        args=(*reads(q="u32", book="u32"), *writes(y="T"), *uints("rows", "blocks", "pitch")),
        variants={"T": FLOATS},
        constants={**_CONSTANTS, "Y_QUADS": False},
        trials=tuple((*_trial(name, align), quads) for name, align, quads in (
            ("q4_0", 1, False), ("q4_k", 16, True), ("iq2_s", 4, True), ("iq1_m", 4, True))),
    )
)  # fmt: skip
PACKED_ROWS = declare(
    KernelDecl(
        "packed_rows",
        about="y (m, n) = x (m, blocks * BLOCK) times the transposed packed rows of q, for few rows of x.",
        grid="a group of 256 for each 256 / ACROSS rows of q, for each ROWS rows of x (of an expert)",
        args=(
            *reads(x="T", q="u32", book="u32", sizes="i32"), *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "experts"),
        ),
        variants={"T": FLOATS, "ROWS": tuple(map(str, ROWS))},
        constants={**_CONSTANTS, "ACROSS": 32, "X_QUADS": False, "GROUPED": False},
        trials=tuple((*_trial(name, align), across, quads, grouped) for name, align, across, quads, grouped in (
            ("q4_0", 1, 32, False, True), ("q6_k", 16, 8, True, False), ("iq3_s", 4, 8, True, True))),
        unroll=True,
    )
)  # fmt: skip

PACKED_VECTOR = declare(
    KernelDecl(
        "packed_vector",
        about=(
            "y (m, n) = x (m, blocks * BLOCK), or of its RMS norm (NORMED), times the transposed packed rows of q, "
            "plus the bias or with a gate (GATED), for very few rows of x."
        ),
        grid="a group of 256 for 32 / PARTS rows of q at a time, those of every `step`-th tile, for each row of x",
        args=(
            *reads(x="T", gamma="f32", q="u32", bias="f32"), *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "step"), *floats("eps"),
        ),
        variants={"T": FLOATS},
        constants={
            **_CONSTANTS, "SLAB": 64, "PARTS": 1, "SUBNORMALS": False, "NORMED": False, "GATED": False,
            "ACTIVATION": 0, "BIAS": 0, "EARLY": False,
        },
        trials=tuple((*_trial(name, align), slab, parts, normal, normed, gated, activation, bias, early)
            for name, align, slab, parts, normal, normed, gated, activation, bias, early in (
            ("q4_0", 1, 64, 1, True, False, False, 0, 2, False), ("q6_k", 16, 128, 2, False, True, True, 4, 0, True),
            ("fp8_e4m3", 4, 256, 4, True, True, False, 0, 1, True))),
        headers=("prims",),
        resident="2",
        unroll=True,
        begins=True,
    )
)  # fmt: skip
PACKED_FEW = declare(
    KernelDecl(
        "packed_few",
        about="y (m, n) = x (m, blocks * BLOCK) times the transposed packed rows of q, for four rows of x.",
        grid="a group of 256 for each 1024 / ACROSS rows of q, for each four rows of x",
        args=(*reads(x="T", q="u32"), *writes(y="T"), *uints("m", "n", "blocks", "pitch")),
        variants={"T": FLOATS},
        constants={**_CONSTANTS, "ACROSS": 32, "SUBNORMALS": False},
        trials=tuple((*_trial(name, align), across, normal) for name, align, across, normal in (
            ("q4_0", 1, 32, True), ("q6_k", 16, 64, False), ("fp8_e4m3", 4, 64, True))),
        unroll=True,
    )
)  # fmt: skip
PACKED_MMA = declare(
    KernelDecl(
        "packed_mma",
        about="y (m, n) = x (m, blocks * BLOCK) times the transposed packed rows of q, by matrix instructions.",
        grid="a group of 256 for each 128 * TILES / PARTS rows of q, for each COLS / TERMS rows of x",
        args=(
            *reads(x="T", q="u32", sizes="i32", scales="f32"), *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "experts"),
        ),
        variants={"T": ("f16", "bf16"), "COLS": tuple(map(str, COLUMNS))},
        constants={
            **_CONSTANTS, "SCALES": 1, "IN_PAIRS": False, "PARTS": 2, "TILES": 2, "TERMS": 1, "GROUPED": False,
            "RESIDENT": 2,
        },
        trials=tuple(
            (*_trial(name, 16), *_scales(PACKED[name]).values(), tiles, tiles, terms, grouped, 2)
            for name, tiles, terms, grouped in (
                ("q4_0", 2, 1, False), ("q4_k", 1, 2, True), ("fp8_e4m3", 1, 1, False))
        ),
        headers=("mma",),
        resident="RESIDENT",
        cuda_only=True,
    )
)  # fmt: skip
PACKED_DIRECT = declare(
    KernelDecl(
        "packed_direct",
        about=(
            "y (m, n) = x (m, blocks * BLOCK), or of its RMS norm (NORMED), times the transposed packed rows of q, "
            "plus the bias or with a gate (GATED), for very few rows of x."
        ),
        grid="a group of 256 for each 128 * TILES / PARTS rows of q, for each COLS / GROUPS / TERMS rows of x",
        args=(
            *reads(x="T", gamma="f32", q="u32", bias="f32", sizes="i32", scales="f32"), *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "experts"), *floats("eps"),
        ),
        variants={"T": ("f16", "bf16"), "COLS": ("8", "16")},
        constants={
            **_CONSTANTS, "PARTS": 8, "TILES": 1, "TERMS": 1, "GROUPED": False, "RESIDENT": 2, "ALONE": False,
            "STAGED": False, "X_TYPE": 0, "X_UNITS": 0, "NORMED": False, "GATED": False, "ACTIVATION": 0, "BIAS": 0,
            "EARLY": False,
        },
        trials=tuple(
            (*_trial(name, 16), parts, tiles, terms, grouped, 2, alone, False, 0, 0, False, False, 0, 0, early)
            for name, parts, tiles, terms, grouped, alone, early in (
                ("q4_0", 8, 1, 1, False, False, True), ("q4_k", 4, 2, 2, True, False, False),
                ("q4_k", 4, 2, 1, False, True, False), ("fp8_e4m3", 2, 1, 1, False, False, False))
        ),
        headers=("prims", "mma"),
        resident="RESIDENT",
        begins=True,
        cuda_only=True,
    )
)  # fmt: skip
_UNSTAGED = {
    "STAGED": False, "X_TYPE": 0, "X_UNITS": 0, "NORMED": False, "GATED": False, "ACTIVATION": 0, "BIAS": 0,
}  # fmt: skip
PACKED_MATRIX = declare(
    KernelDecl(
        "packed_matrix",
        about="y (m, n) = x (m, blocks * BLOCK) times the transposed packed rows of q, by opaque matrices.",
        grid="a group of 128 for each 64 TALL / PARTS rows of q, for each X_ROWS / TERMS rows of x",
        args=(*reads(x="T", q="u32", scales="f32"), *writes(y="T"), *uints("m", "n", "blocks", "pitch")),
        variants={"T": ("f16",), "DEPTH": ("8", "16")},
        constants={
            **_CONSTANTS, "SCALES": 1, "IN_PAIRS": False, "SPAN": 2, "LOWS": 0, "PARTS": 4, "X_ROWS": 4, "TERMS": 1,
            "Y_TYPE": 0, "TALL": 1,
        },
        trials=tuple(
            (*_trial(name, 16), *_steps(PACKED[name], span).values(), parts, rows, terms, kind, tall)
            for name, span, parts, rows, terms, kind, tall in (
                ("q4_0", 1, 4, 1, 1, 0, 1), ("q6_k", 2, 2, 8, 1, 1, 1), ("q4_k", 2, 2, 16, 2, 2, 2),
                ("fp8_e4m3", 2, 1, 4, 1, 0, 2))
        ),
        threads=128,
        headers=("mma",),
        unroll=True,
        new_compiler=True,
    )
)  # fmt: skip
HALF_TERMS = declare(
    KernelDecl(
        "half_terms",
        about="y (2 rows, k) = two halves for each element of x (rows, k); `scales` take their power of two back.",
        grid="a group of 256 for each row",
        args=(*reads(x="T"), *writes(y="f16", scales="f32"), *uints("rows", "k")),
        variants={"T": ("f32", "bf16")},
    )
)


class Weight:
    """A packed tensor as the kernels take it: its bytes, those of a row, the blocks of a row, and its codebook."""

    def __init__(self, ctx: Lowering, q: Tensor) -> None:
        self.dtype = q.dtype
        self.ref = ctx.ref(q)
        self.rows, self.columns = math.prod(q.shape[:-1]), q.shape[-1]
        self.blocks = self.columns // q.dtype.storage.elements
        self.pitch = self.blocks * q.dtype.storage.nbytes
        align = next(n for n in (16, 4, 1) if self.ref.offset % n == 0 and self.pitch % n == 0)
        self.constants = layout(q.dtype, align)
        self.book = ctx.block(_book(q.dtype.name.removesuffix("_128")))

    @property
    def units(self) -> int:
        """What a thread decodes at a time, in a block."""
        size, runs = self.constants["SIZE0"], self.constants["RUNS"]
        return size // 16 if runs else self.dtype.storage.elements // 8

    def decoded(self, ctx: Lowering, first: int, rows: int, out: Ref, dtype: DType) -> None:
        """Appends the launch that decodes some of the rows."""
        kernel = DEQUANTIZE(T=dtype.name, **self.constants, Y_QUADS=quads(out, itemsize=dtype.itemsize))
        threads = rows * self.blocks * self.units
        part = from_(self.ref, first * self.pitch)
        if part.offset % self.constants["ALIGN"]:
            raise ValueError("a row of packed weights begins where its alignment does not allow")
        ctx.launch(
            kernel,
            ctx.groups(math.ceil(threads / THREADS)),
            [part, self.book, out, rows, self.blocks, self.pitch],
        )


def _native(node: Node, features: frozenset[str]) -> bool:
    plain = [t for t in (*node.inputs, *node.outputs) if not t.dtype.is_packed]
    return all(stores(t.dtype, features) for t in plain) and fits(*(t.type for t in plain))


def _native_grouped(node: Node, features: frozenset[str]) -> bool:
    # All experts at once, since only the run tells whose rows are whose.
    decoded = node.inputs[1].size * f32.itemsize
    # The kernel for experts has no other candidate beside it, and is none without 16-bit storage (gemm/packed.py).
    fits_all = "16bit_storage" in features if node.attrs["transpose_q"] else decoded <= _MOST_DECODED
    return _native(node, features) and fits_all


def _decodable(node: Node, features: frozenset[str]) -> bool:
    return stores(node.output.dtype, features, True) and fits(node.output.type)


@lowers("dequantize", when=_decodable)
def lower_dequantize(ctx: Lowering, node: Node) -> None:
    """Every element from its block, in one launch; an f64 through an f32, which holds it."""
    y, stored = node.output, ctx.storage(node.output)
    if y.size == 0:
        return
    w = Weight(ctx, node.inputs[0])
    if stored.name in FLOATS:
        w.decoded(ctx, 0, w.rows, ctx.ref(y), stored)
        return
    made = ctx.scratch(y.size * f32.itemsize)
    w.decoded(ctx, 0, w.rows, made, f32)
    convert(ctx, made, f32, ctx.ref(y), stored, y.size)


@lowers("packed_matmul", when=_native)
def lower_packed_matmul(ctx: Lowering, node: Node) -> None:
    """Few rows: one launch that reads the packed weight. Many: the weight tile by tile, decoded, and products of it."""
    y = node.output
    if y.size == 0:
        return
    w = Weight(ctx, node.inputs[1])
    m = y.size // y.shape[-1]
    if node.attrs["transpose_q"]:
        _product(ctx, node, w, m, m)
    else:
        _the_other_way(ctx, node, w, m)


@lowers("grouped_packed_matmul", when=_native_grouped)
def lower_grouped(ctx: Lowering, node: Node) -> None:
    """One launch, whose workgroups find their rows by adding up the sizes; with the weights the other way round, all of
    them in f32 and a grouped product of these."""
    y = node.output
    if y.size == 0:
        return
    x, q, sizes = node.inputs
    w, m, experts = Weight(ctx, q), y.shape[0], q.shape[0]
    if node.attrs["transpose_q"]:
        _product(ctx, node, w, m, math.ceil(m / max(experts, 1)))
        return
    n, k = q.shape[1:]
    b = Operand(ctx.scratch(q.size * f32.itemsize), f32)
    w.decoded(ctx, 0, w.rows, b.ref, f32)
    a, stored = Operand.of(ctx, x).stored(ctx, f32), ctx.storage(y)
    c = Operand(ctx.ref(y) if stored == f32 else ctx.scratch(y.size * f32.itemsize), f32)
    kernel = MATMUL_GROUPED(
        AB="f32_f32", TILE="s", A_TRANSPOSED=False, B_TRANSPOSED=False, ACTIVATION=0, BIAS=0, A_QUADS=a.vectors(n, 4),
        B_QUADS=b.vectors(k, 4), C_QUADS=c.vectors(k, 4), IN_PARTS=n > LONG_SUM, WIDE=False, BY_SUM=False,
    )  # fmt: skip
    high, across, _ = FMA_TILES["s"]
    tiles = (math.ceil(m / high) + experts + 1) * math.ceil(k / across)
    ctx.launch(kernel, ctx.groups(tiles), [a.ref, b.ref, ctx.ref(sizes), c.ref, m, k, n, experts])
    if stored != f32:
        convert(ctx, c.ref, f32, ctx.ref(y), stored, y.size)


def _product(ctx: Lowering, node: Node, w: Weight, m: int, each: int) -> None:
    """The chosen product for m rows of x, `each` of them for an expert."""
    y, grouped = node.output, len(node.inputs) == 3
    stored = ctx.storage(y)
    in_fours = quads(ctx.ref(node.inputs[0]), itemsize=stored.itemsize)
    wide = w.constants["ALIGN"] == 16 and w.constants["RUNS"] > 0 and bool(in_fours)
    eights = ctx.ref(node.inputs[0]).offset % (8 * stored.itemsize) == 0
    chosen = choose_packed(
        ctx.target,
        PackedProblem(
            each, y.shape[-1], w.columns, stored, w.dtype, w.blocks * w.units, wide, grouped, eights
        ),
    )
    if isinstance(chosen, DecodedTiles):
        _wide(ctx, node, w, m, chosen.type)
        return
    x, n, experts = ctx.ref(node.inputs[0]), y.shape[-1], node.inputs[1].shape[0] if grouped else 0
    sizes = ctx.ref(node.inputs[2]) if grouped else x
    sides = (m, n, w.blocks, w.pitch, experts)
    if isinstance(chosen, PackedRows):
        rows, columns = chosen.rows, THREADS // chosen.across
        kernel = PACKED_ROWS(
            T=stored.name, ROWS=str(rows), **w.constants, ACROSS=chosen.across,
            X_QUADS=quads(x, itemsize=stored.itemsize), GROUPED=grouped,
        )  # fmt: skip
        args: list[Arg] = [x, w.ref, w.book, sizes, ctx.ref(y), *sides]
    elif isinstance(chosen, PackedVector):
        vector_launch(ctx, chosen, VectorCall(x, stored, m, w, ctx.ref(y), kept=never_written(node.inputs[1])))
        return
    elif isinstance(chosen, PackedFew):
        rows, columns = 4, 4 * THREADS // chosen.across
        kernel = PACKED_FEW(
            T=stored.name,
            **w.constants,
            ACROSS=chosen.across,
            SUBNORMALS="denorm_preserve" in ctx.target.features,
        )
        args = [x, w.ref, ctx.ref(y), m, n, w.blocks, w.pitch]
    elif isinstance(chosen, PackedMatrix):
        rows, columns = chosen.rows // chosen.terms, 64 * chosen.tall // chosen.parts
        scales = x
        if stored != f16:
            x, scales = _halves(ctx, x, stored, m, w.columns, chosen.terms)
        steps = _steps(w.dtype, chosen.span)
        kernel = PACKED_MATRIX(
            T="f16", DEPTH="16" if steps["IN_PAIRS"] else "8", **w.constants, **steps, PARTS=chosen.parts,
            X_ROWS=chosen.rows, TERMS=chosen.terms, Y_TYPE=(f16, bf16, f32).index(stored), TALL=chosen.tall,
        )  # fmt: skip
        args = [x, w.ref, scales, ctx.ref(y), m, n, w.blocks, w.pitch]
    else:
        scales = x
        if chosen.terms == 2:
            x, scales = _halves(ctx, x, stored, m, w.columns, 2)
        if isinstance(chosen, PackedDirect):
            rows = chosen.columns // scale_groups(w.dtype) // chosen.terms
            columns = 128 * chosen.tiles // chosen.parts
            kernel = PACKED_DIRECT(
                T=chosen.type.name, COLS=str(chosen.columns), **w.constants, PARTS=chosen.parts, TILES=chosen.tiles,
                TERMS=chosen.terms, GROUPED=grouped, RESIDENT=chosen.resident,
                ALONE=m * chosen.terms == 1 and not grouped, **_UNSTAGED, EARLY=never_written(node.inputs[1]),
            )  # fmt: skip
            args = [x, x, w.ref, x, sizes, scales, ctx.ref(y), *sides, 0.0]
        else:
            rows, columns = chosen.columns // chosen.terms, 128 * chosen.tiles // chosen.parts
            kernel = PACKED_MMA(
                T=chosen.type.name, COLS=str(chosen.columns), **w.constants, **_scales(w.dtype), PARTS=chosen.parts,
                TILES=chosen.tiles, TERMS=chosen.terms, GROUPED=grouped, RESIDENT=chosen.resident,
            )  # fmt: skip
            args = [x, w.ref, sizes, scales, ctx.ref(y), *sides]
    # Each expert may have one share that is not full, and so may the rows after the last expert's.
    shares = math.ceil(m / rows) + (experts + 1 if grouped else 0)
    ctx.launch(kernel, ctx.groups(math.ceil(n / columns) * shares), args)


@dataclass(frozen=True, slots=True)
class VectorCall:
    """A call of packed_vector: x stored as `stored`, m rows of it, the weight, y, and what the product is fused with.
    `gamma` (f32) and `eps`: of the norm of x; `gate`: the activation of the first half of the result, which the other
    is multiplied by; `bias`: of the kind that the kernel's BIAS says; `kept`: no step writes the weight."""

    x: Ref
    stored: DType
    m: int
    weight: Weight
    y: Ref
    gamma: Ref | None = None
    eps: float = 0.0
    gate: str | None = None
    bias: Ref | None = None
    bias_kind: int = 0
    kept: bool = False


def never_written(weight: Tensor) -> bool:
    """Whether no step of a program writes the weight, so that a kernel may read it before others have ended."""
    return weight.node.op.leaf in (Leaf.PARAM, Leaf.CONSTANT)


def vector_launch(ctx: Lowering, chosen: PackedVector, call: VectorCall) -> None:
    """Appends a launch of packed_vector. Where all of x lies in shared memory, a workgroup takes several tiles of rows,
    so that x is placed there as often as there are workgroups on the device at once."""
    w, sides = call.weight, 1 if call.gate is None else 2
    n = w.rows // sides
    kernel = PACKED_VECTOR(
        T=call.stored.name, **w.constants, SLAB=chosen.slab, PARTS=chosen.parts,
        SUBNORMALS="denorm_preserve" in ctx.target.features, NORMED=call.gamma is not None, GATED=call.gate is not None,
        ACTIVATION=CODE[call.gate], BIAS=call.bias_kind, EARLY=call.kept,
    )  # fmt: skip
    tiles = math.ceil(n / (32 // chosen.parts // sides))
    step = min(tiles, chosen.resident * ctx.target.units) if w.blocks * w.units <= chosen.slab else tiles
    args: list[Arg] = [call.x, call.gamma or call.x, w.ref, call.bias or call.x, call.y]
    ctx.launch(kernel, ctx.groups(step * call.m), [*args, call.m, n, w.blocks, w.pitch, step, call.eps])


def direct_launch(ctx: Lowering, chosen: PackedDirect, call: VectorCall) -> None:
    """Appends a launch of packed_direct for a row that each workgroup makes halves of."""
    w, sides = call.weight, 1 if call.gate is None else 2
    n, k = w.rows // sides, w.columns
    kernel = PACKED_DIRECT(
        T="f16", COLS="8", **w.constants, PARTS=chosen.parts, TILES=chosen.tiles, TERMS=2, GROUPED=False,
        RESIDENT=chosen.resident, ALONE=w.dtype.name in ("q4_k", "q5_k"), STAGED=True,
        X_TYPE=(f16, bf16, f32).index(call.stored), X_UNITS=k // 4, NORMED=call.gamma is not None,
        GATED=call.gate is not None, ACTIVATION=CODE[call.gate], BIAS=call.bias_kind, EARLY=call.kept,
    )  # fmt: skip
    x = call.x
    args: list[Arg] = [x, call.gamma or x, w.ref, call.bias or x, x, x, call.y, 1, n, w.blocks, w.pitch, 0, call.eps]
    ctx.launch(kernel, ctx.groups(math.ceil(n / (128 * chosen.tiles // chosen.parts // sides))), args)


def _halves(ctx: Lowering, x: Ref, stored: DType, m: int, k: int, terms: int) -> tuple[Ref, Ref]:
    """x in f32 or bf16 as halves, and the powers of two of its rows."""
    halves, scales = ctx.scratch(m * k * terms * f16.itemsize), ctx.scratch(m * f32.itemsize)
    ctx.launch(HALF_TERMS(T=stored.name), ctx.groups(m), [x, halves, scales, m, k])
    return halves, scales


def _tiles(w: Weight, kind: DType = f32) -> list[tuple[int, int]]:
    """The first row and the number of rows of each tile, all but the last of equal size."""
    most = _HALF_TILE_BYTES if kind.is_half else _TILE_BYTES
    rows = max(1, most // max(w.columns * kind.itemsize, 1))
    return [(first, min(rows, w.rows - first)) for first in range(0, w.rows, rows)]


def _wide(ctx: Lowering, node: Node, w: Weight, m: int, kind: DType) -> None:
    """Tiles of the weight's rows, which are columns of the result, decoded into `kind`."""
    y, n = node.output, w.rows
    stored, out = ctx.storage(y), ctx.ref(y)
    x = Operand.of(ctx, node.inputs[0]).stored(ctx, kind)
    tiles = _tiles(w, kind)
    tile = ctx.scratch(tiles[0][1] * w.columns * kind.itemsize)
    alone = len(tiles) == 1 and stored == kind
    made = out if alone else ctx.scratch(m * tiles[0][1] * kind.itemsize)
    for first, rows in tiles:
        part = Ref(tile.segment, tile.offset, rows * w.columns * kind.itemsize)
        w.decoded(ctx, first, rows, part, kind)
        c = Operand(Ref(made.segment, made.offset, m * rows * kind.itemsize), kind)
        p = Product(m, rows, w.columns, (), False, True)
        product(ctx, ProductCall(p, x, Operand(part, kind), c, Epilogue(), node.label or node.op.name))
        if not alone:
            launch_tree(ctx, [expr.cast(expr.arg(0, kind), stored)], (m, rows), [View(c.ref, kind, (rows, 1))],
                        [View(out, stored, (n, 1), first)])  # fmt: skip


def _the_other_way(ctx: Lowering, node: Node, w: Weight, m: int) -> None:
    """x @ q: tiles of the weight's rows are parts of the sum, which are added up in f32."""
    y = node.output
    x, stored = Operand.of(ctx, node.inputs[0]), ctx.storage(y)
    tiles = _tiles(w) or [(0, 0)]  # a product with no rows of the weight is zeros
    tile = ctx.scratch(tiles[0][1] * w.columns * f32.itemsize)
    given = ctx.scratch(m * tiles[0][1] * f32.itemsize)
    shape = (m, w.columns)
    total = ctx.ref(y) if stored == f32 else ctx.scratch(math.prod(shape) * f32.itemsize)
    part = ctx.scratch(math.prod(shape) * f32.itemsize) if len(tiles) > 1 else total
    for first, rows in tiles:
        weight = Ref(tile.segment, tile.offset, rows * w.columns * f32.itemsize)
        a = Ref(given.segment, given.offset, m * rows * f32.itemsize)
        if rows:
            w.decoded(ctx, first, rows, weight, f32)
            launch_tree(ctx, [expr.cast(expr.arg(0, x.dtype), f32)], (m, rows),
                        [View(x.ref, x.dtype, (w.rows, 1), first)], [View(a, f32, (rows, 1))])  # fmt: skip
        c = total if first == 0 else part
        p = Product(m, w.columns, rows, (), False, False)
        call = ProductCall(p, Operand(a, f32), Operand(weight, f32), Operand(c, f32), Epilogue())
        product(ctx, replace(call, label=node.label or node.op.name))
        if first:
            views = [View(r, f32, contiguous(shape)) for r in (total, part)]
            launch_tree(ctx, [expr.arg(0, f32) + expr.arg(1, f32)], shape, views, views[:1])
    if stored != f32:
        convert(ctx, total, f32, ctx.ref(y), stored, y.size)
