"""Declarations of the kernels for packed weights, the constants that describe a format to them, and their weight
arguments."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from rlx.backends.gpu.gemm.operands import from_
from rlx.backends.gpu.gemm.packed import COLUMNS, ROWS
from rlx.backends.gpu.program.casts import THREADS
from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, floats, reads, uints, writes
from rlx.backends.gpu.program.lowering import Lowering
from rlx.backends.gpu.program.steps import Ref
from rlx.dtypes import PACKED, DType
from rlx.ir import Tensor
from rlx.packed.codebooks import codebook

# The constants that describe a packed dtype to the kernels, in their order: see packed.h.
_LAYOUT = ("FORMAT", "BLOCK", "SIZE0", "AT1", "AT2", "AT3", "RUNS", "BOOK_WORDS", "ALIGN")
# FORMAT is an index into this tuple. A variant with another block length is not another format.
FORMATS = tuple(name for name, dtype in PACKED.items() if name == dtype.family)
# Formats by RUNS, the number of runs of 16 elements in the quants of a chunk: 1, 4, or 0 (no chunks); 2 for all others.
_ONE_RUN = frozenset({"q8_0", "int8", "int8_zp", "fp8_e4m3", "fp8_e5m2"})
_FOUR_RUNS = frozenset({"q2_k", "q3_k", "tq2_0"})
_BOOKED = ("iq1", "iq2", "iq3")  # name prefixes of the formats with a codebook
_NO_RUNS = frozenset({"q1_0", "tq1_0", "nvfp4", *(n for n in PACKED if n.startswith(_BOOKED))})


def layout(dtype: DType, align: int) -> dict[str, int]:
    """The constants of the kernels for a packed dtype whose rows begin at multiples of `align` bytes."""
    name, storage = dtype.family, dtype.storage
    ends = np.cumsum([plane.nbytes for plane in storage.planes]).tolist()
    at = (*ends, *ends[-1:] * 3)[:3]
    runs = 1 if name in _ONE_RUN else 4 if name in _FOUR_RUNS else 0 if name in _NO_RUNS else 2
    words = _book(name).shape[1] // 4 if runs == 0 else 0
    values = (FORMATS.index(name), storage.elements, storage.planes[0].nbytes, *at, runs, words, align)
    return dict(zip(_LAYOUT, values, strict=True))


@cache
def _book(name: str) -> npt.NDArray[np.int8]:
    """The codebook of a format; a single entry of zeros if it has none."""
    if not name.startswith(_BOOKED):
        return np.zeros((1, 4), np.int8)
    return codebook("iq1" if name.startswith("iq1") else name)


def scales_of(dtype: DType) -> dict[str, int]:
    """The constants of packed_mma for a packed dtype: how many scales a chunk has, and whether two share them."""
    name = dtype.family
    own = name in ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
    runs = layout(dtype, 1)["RUNS"]
    return {"SCALES": runs if own else 1, "IN_PAIRS": runs == 1 or name in ("q4_k", "q5_k", "tq2_0")}


def steps_of(dtype: DType, span: int) -> dict[str, int]:
    """The constants of packed_matrix: those of packed_mma, the length of a step, and whether the format has minimums or
    zero points."""
    name = dtype.family
    lows = int(name.endswith("_zp") or name in ("q4_1", "q5_1", "q2_k", "q4_k", "q5_k"))
    return {**scales_of(dtype), "SPAN": span, "LOWS": lows}


def _trial(name: str, align: int) -> tuple[int, ...]:
    return tuple(layout(PACKED[name], align).values())


_CONSTANTS = dict.fromkeys(_LAYOUT, 0) | layout(PACKED["q4_0"], 1)
DEQUANTIZE = declare(
    KernelDecl(
        "dequantize",
        about="y (rows, blocks * BLOCK) = the elements of packed rows q, `pitch` bytes apart; book: the codebook.",
        grid="a group of 256 for each 512 times 16 bytes of y in each run of a chunk",
        args=(*reads(q="u32", book="u32"), *writes(y="T"), *uints("rows", "blocks", "pitch")),
        variants={"T": FLOATS},
        constants={**_CONSTANTS, "WIDE": False},
        trials=tuple((*_trial(name, align), wide) for name, align, wide in (
            ("q4_0", 1, False), ("q4_k", 16, True), ("iq2_s", 4, True), ("iq1_m", 4, True))),
        headers=("rounding",),
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

PACKED_LINE = declare(
    KernelDecl(
        "packed_line",
        about=(
            "y (m, n) = x (m, BLOCKS * BLOCK), or its RMS norm (NORMED), times the transposed packed rows of q, plus "
            "the bias or with a gate (GATED), for very few rows of x."
        ),
        grid="a group of 256 for tiles of 8 * HIGH / PARTS rows of q, every `step`-th of them, for each row of x",
        args=(
            *reads(x="T", gamma="f32", q="u32", bias="f32"), *writes(y="T"),
            *uints("m", "n", "step"), *floats("eps"),
        ),
        variants={"T": FLOATS, "HIGH": ("2", "3", "4")},
        constants={
            **_CONSTANTS, "SLAB": 64, "PARTS": 1, "SUBNORMALS": False, "NORMED": False, "GATED": False,
            "ACTIVATION": 0, "BIAS": 0, "EARLY": False, "BLOCKS": 2, "PITCH": 36, "WHOLE": False, "LIMBS": False,
        },
        trials=tuple(
            (*_trial(name, align), slab, parts, normal, *around, blocks, blocks * PACKED[name].storage.nbytes, *how)
            for name, align, slab, parts, normal, around, blocks, how in (
                ("q4_0", 1, 64, 1, True, (False, False, 0, 2, False), 2, (False, False)),
                ("q6_k", 16, 128, 2, False, (True, True, 4, 0, True), 8, (True, True)),
                ("q4_k", 16, 128, 2, True, (True, False, 0, 0, True), 16, (True, True)),
                ("fp8_e4m3", 4, 256, 4, True, (True, False, 0, 1, True), 8, (False, False)))
        ),
        headers=("prims",),
        resident="2",
        unroll=True,
        begins=True,
    )
)  # fmt: skip
PACKED_VECTOR = declare(
    KernelDecl(
        "packed_vector",
        about="y (m, n) = x (m, blocks * BLOCK) times the transposed packed rows of q, for very few rows of x.",
        grid="a group of 256 for each 32 rows of q, for each row of x",
        args=(*reads(x="T", q="u32"), *writes(y="T"), *uints("m", "n", "blocks", "pitch")),
        variants={"T": FLOATS},
        constants={**_CONSTANTS, "SLAB": 32, "SUBNORMALS": False},
        trials=tuple((*_trial(name, align), slab, normal) for name, align, slab, normal in (
            ("q4_0", 1, 32, True), ("q6_k", 16, 128, False), ("fp8_e4m3", 4, 64, True))),
        resident="(HIGH_WORDS || HIGH_WORD ? 2 : 3)",
        unroll=True,
    )
)  # fmt: skip
PACKED_DIGITS = declare(
    KernelDecl(
        "packed_digits",
        about=(
            "y (m, n) = x (m, blocks * BLOCK), or its RMS norm (norm), times the transposed packed rows of q, plus "
            "the bias (add) or with a gate (gate), for very few rows of x, by integer dot products."
        ),
        grid="a group of 256 for tiles of 8 * HIGH / PARTS rows of q, every `step`-th of them, for each row of x",
        args=(
            *reads(x="T", gamma="f32", q="u32", bias="f32"), *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "step", "norm", "gate", "add"), *floats("eps"),
        ),
        variants={"T": FLOATS, "HIGH": ("2", "4"), "DOT": ("packed",)},
        constants={
            **_CONSTANTS, "SLAB": 64, "PARTS": 1, "ACTIVATION": 0, "BIAS": 2, "HALVES": False,
        },
        trials=tuple((*_trial(name, align), slab, parts, activation, bias, False)
            for name, align, slab, parts, activation, bias in (
            ("q4_0", 1, 64, 1, 0, 2), ("q6_k", 16, 128, 2, 4, 2), ("int8_zp", 4, 256, 4, 0, 1))),
        headers=("prims",),
        resident="2",
        subgroups=True,
        unroll=True,
        new_compiler=True,
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
            (*_trial(name, 16), *scales_of(PACKED[name]).values(), tiles, tiles, terms, grouped, 2)
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
        about="y (m, n) = x (m, blocks * BLOCK) times the transposed packed rows of q, for very few rows of x.",
        grid="a group of 256 for each 128 * TILES / PARTS rows of q, for each COLS / GROUPS / TERMS rows of x",
        args=(
            *reads(x="T", q="u32", sizes="i32", scales="f32"), *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "experts"),
        ),
        variants={"T": ("f16", "bf16"), "COLS": ("8", "16")},
        constants={
            **_CONSTANTS, "PARTS": 8, "TILES": 1, "TERMS": 1, "GROUPED": False, "RESIDENT": 2, "ALONE": False,
            "EARLY": False,
        },
        trials=tuple(
            (*_trial(name, 16), parts, tiles, terms, grouped, 2, alone, not grouped)
            for name, parts, tiles, terms, grouped, alone in (
                ("q4_0", 8, 1, 1, False, False), ("q4_k", 4, 2, 2, True, False), ("q4_k", 4, 2, 1, False, True),
                ("fp8_e4m3", 2, 1, 1, False, False))
        ),
        headers=("mma",),
        resident="RESIDENT",
        begins=True,
        cuda_only=True,
    )
)  # fmt: skip
PACKED_PANEL = declare(
    KernelDecl(
        "packed_panel",
        about="y (m, n) = x (m, BLOCKS * BLOCK) times the transposed packed rows of q, for few rows of x.",
        grid="CLUSTER groups of 256 for each 256 / PARTS rows of q",
        args=(*reads(x="T", q="u32"), *writes(y="T"), *uints("m", "n")),
        variants={"T": ("f16", "bf16"), "COLS": ("8", "16")},
        constants={
            **_CONSTANTS, "HELD": 4, "PARTS": 2, "STAGES": 2, "EARLY": False, "BLOCKS": 2, "PITCH": 36, "CLUSTER": 1
        },
        trials=tuple(
            (*_trial(name, 16), held, parts, stages, early, blocks, blocks * PACKED[name].storage.nbytes, cluster)
            for name, held, parts, stages, early, blocks, cluster in (
                ("q4_k", 4, 2, 3, True, 16, 1), ("q8_0", 8, 8, 2, False, 128, 1), ("q4_k", 8, 2, 2, True, 56, 4))
        ),
        headers=("mma",),
        cluster="CLUSTER",
        begins=True,
        cuda_only=True,
    )
)  # fmt: skip
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
            (*_trial(name, 16), *steps_of(PACKED[name], span).values(), parts, rows, terms, kind, tall)
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
    """A packed tensor as kernel arguments: its bytes, the bytes and blocks of a row, and its codebook."""

    def __init__(self, ctx: Lowering, q: Tensor) -> None:
        self.dtype = q.dtype
        self.ref = ctx.ref(q)
        self.rows, self.columns = math.prod(q.shape[:-1]), q.shape[-1]
        self.blocks = self.columns // q.dtype.storage.elements
        self.pitch = self.blocks * q.dtype.storage.nbytes
        align = next(n for n in (16, 4, 1) if self.ref.offset % n == 0 and self.pitch % n == 0)
        self.constants = layout(q.dtype, align)
        self.book = ctx.block(_book(q.dtype.family))

    @property
    def units(self) -> int:
        """The number of pieces of a block that a thread decodes at a time: chunks, or groups of eight elements."""
        size, runs = self.constants["SIZE0"], self.constants["RUNS"]
        return size // 16 if runs else self.dtype.storage.elements // 8

    def decoded(self, ctx: Lowering, first: int, rows: int, out: Ref, dtype: DType) -> None:
        """Appends the launch that decodes some of the rows."""
        size, runs = self.constants["BLOCK"] * dtype.itemsize // 16, max(1, self.constants["RUNS"])
        threads = rows * self.blocks * math.ceil(size / runs)
        kernel = DEQUANTIZE(T=dtype.name, **self.constants, WIDE=out.offset % 16 == 0)
        part = from_(self.ref, first * self.pitch)
        if part.offset % self.constants["ALIGN"]:
            raise ValueError("a row of packed weights begins where its alignment does not allow")
        ctx.launch(
            kernel,
            ctx.groups(math.ceil(threads / (2 * THREADS))),
            [part, self.book, out, rows, self.blocks, self.pitch],
        )
