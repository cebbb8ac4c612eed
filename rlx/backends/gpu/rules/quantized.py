"""Lowering of packed weights: dequantize, and products that read the packed blocks themselves."""

from __future__ import annotations

from rlx.backends.gpu.program.kernel import FLOATS, KernelDecl, declare, reads, uints, writes

# What the kernels know of a packed dtype: see packed.h.
LAYOUT = {"FORMAT": 0, "BLOCK": 32, "SIZE0": 16, "AT1": 16, "AT2": 18, "AT3": 18, "RUNS": 2, "ALIGN": 1}
_Q4_0, _Q4_K, _Q6_K = (0, 32, 16, 16, 18, 18, 2), (7, 256, 128, 128, 140, 144, 2), (9, 256, 128, 128, 192, 208, 2)
_IQ2_S = (16, 256, 32, 32, 64, 72, 0)

DEQUANTIZE = declare(
    KernelDecl(
        "dequantize",
        about="y (rows, blocks * BLOCK) = the elements of packed rows q, `pitch` bytes apart; book: the codebook.",
        grid="a thread for each 16 bytes of quants, or each 8 elements",
        args=(*reads(q="u32", book="u32"), *writes(y="T"), *uints("rows", "blocks", "pitch")),
        variants={"T": FLOATS},
        constants={**LAYOUT, "BOOK_WORDS": 2, "Y_QUADS": False},
        trials=((*_Q4_0, 1, 2, False), (*_Q4_K, 16, 2, True), (*_IQ2_S, 4, 2, True)),
    )
)
PACKED_ROWS = declare(
    KernelDecl(
        "packed_rows",
        about="y (m, n) = x (m, blocks * BLOCK) times the transposed packed rows of q, for few rows of x.",
        grid="a group of 256 for each 256 / ACROSS rows of q, for each ROWS rows of x (of an expert)",
        args=(
            *reads(x="T", q="u32", sizes="i32"),
            *writes(y="T"),
            *uints("m", "n", "blocks", "pitch", "experts"),
        ),
        variants={"T": FLOATS, "ROWS": ("1", "4", "16")},
        constants={**LAYOUT, "ACROSS": 32, "X_QUADS": False, "GROUPED": False},
        trials=((*_Q4_0, 1, 32, False, True), (*_Q4_K, 16, 32, True, False), (*_Q6_K, 16, 8, True, False)),
        unroll=True,
    )
)
