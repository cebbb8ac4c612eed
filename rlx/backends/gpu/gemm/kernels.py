"""Declarations of the GEMM kernels, and the words and constants that grouped products share with them."""

from __future__ import annotations

from rlx.backends.gpu.program.kernel import KernelDecl, declare, floats, maps, reads, uints, writes

# The lengths of the two inner batch axes, and the strides of A and B along all three, in elements.
PLACES = ("d1", "d2", "a0", "a1", "a2", "b0", "b1", "b2")
PAIRS = ("f32_f32", "f32_f16", "f32_bf16", "f16_f16", "bf16_bf16")
# Storage of A and of B, and the matrices' type.
TRIPLES = (
    "f32_f32_f16", "f32_f32_bf16", "f32_f16_f16", "f32_f16_bf16", "f32_bf16_bf16", "f16_f16_f16", "bf16_bf16_bf16",
)  # fmt: skip
_BEFORE = {"A_TRANSPOSED": False, "B_TRANSPOSED": False, "ACTIVATION": 0, "BIAS": 0}
_AFTER = {"C_QUADS": False, "IN_PARTS": False, "WIDE": False}
TILE_CONSTANTS = {**_BEFORE, "A_QUADS": False, "B_QUADS": False, **_AFTER}
MMA_CONSTANTS = {
    **_BEFORE, "A_OCTETS": False, "B_OCTETS": False, **_AFTER, "BK": 32, "SIDES": 1, "TERMS_A": 1, "TERMS_B": 1,
}  # fmt: skip

_ABOUT = (
    "C (batch, m, n) = activation(op(A) op(B) + bias), batch = d0 * d1 * d2 matrices of strides a0 a1 "
    "a2, b0 b1 b2."
)
_GRID = "a group of 256 for each tile of each matrix, for each of `parts` parts of the sum"
_POINTERS = (*reads(a="TA", b="TB", bias="f32"), *writes(c="TA"))
# c: if k is split, the partial results one after the other; bias_step: in words of 4 bytes.
_TILE_ARGS = (*_POINTERS, *uints("m", "n", "k", "batch", "parts", *PLACES, "bias_step"))

MATMUL = declare(
    KernelDecl(
        "matmul",
        about=_ABOUT,
        grid=_GRID,
        args=_TILE_ARGS,
        headers=("prims",),
        variants={"AB": PAIRS, "TILE": ("s", "t", "w", "l")},
        constants=TILE_CONSTANTS,
        trials=(
            (False, True, 2, 1, True, True, True, False, False),
            (True, False, 0, 0, False, False, False, True, True),
        ),
        unroll=True,
    )
)
MATMUL_ROWS = declare(
    KernelDecl(
        "matmul_rows",
        about=(
            "C (batch, m, n) = activation(A op(B) + bias) for few rows, batch = d0 * d1 * d2 matrices of "
            "strides a0 a1 a2, b0 b1 b2."
        ),
        grid="a group of 256 for each SITES sites, of four columns or a unit of B, of each ROWS rows of each matrix",
        args=(*_POINTERS, *uints("m", "n", "k", "batch", *PLACES, "bias_step")),
        headers=("prims",),
        variants={"AB": PAIRS, "ROWS": ("1", "4", "8", "16")},
        constants={
            "B_TRANSPOSED": False,
            "ACTIVATION": 0,
            "BIAS": 0,
            "A_QUADS": False,
            "B_UNITS": False,
            "ACROSS": 32,
            "SITES": 8,
            "AHEAD": 2,
        },
        trials=(
            (False, 2, 1, True, True, 32, 8, 2),
            (True, 0, 0, False, False, 8, 4, 2),
            (True, 1, 1, True, True, 32, 8, 3),
        ),
        resident="MANY * PER > 64u ? 1 : MANY * PER > 16u ? 2 : MANY * PER > 4u ? 3 : 4",
        unroll=True,
    )
)
MATMUL_VECTOR = declare(
    KernelDecl(
        "matmul_vector",
        about="c = activation(x B^T + bias) for one row x, or of its RMS norm (NORMED), with a gate (GATED).",
        grid="a group of 256 for each 256 / LANES times HIGH (or half of HIGH) elements of c",
        args=(*reads(x="TA", gamma="f32", b="TB", bias="f32"), *writes(c="TA"), *uints("n", "k"), *floats("eps")),
        headers=("prims",),
        variants={"AB": PAIRS},
        constants={
            "LANES": 32, "HIGH": 1, "UNITS": False, "NORMED": False, "GATED": False, "ACTIVATION": 0, "BIAS": 0,
            "WIDE": False,
        },
        trials=(
            (32, 1, True, False, False, 2, 2, False),
            (64, 2, True, True, True, 4, 0, False),
            (256, 4, False, True, False, 0, 1, True),
        ),
        resident="3",
        subgroups=True,
        unroll=True,
        begins=True,
    )
)  # fmt: skip
MATMUL_LINE = declare(
    KernelDecl(
        "matmul_line",
        about="c = activation(x B^T + bias) for one row x, or of its RMS norm (NORMED), with a gate (GATED).",
        grid="a group of 256 for each `each` elements of c",
        args=(
            *reads(x="TA", gamma="f32", b="TB", bias="f32"), *writes(c="TA"), *uints("n", "k", "each"), *floats("eps"),
        ),
        headers=("prims",),
        variants={"AB": PAIRS},
        constants={
            "LANES": 32, "MANY": 1, "DEPTH": 2, "NORMED": False, "GATED": False, "ACTIVATION": 0, "BIAS": 0,
            "WIDE": False, "EARLY": False,
        },
        trials=(
            (32, 2, 4, False, False, 2, 2, False, False),
            (64, 4, 4, True, True, 4, 0, False, True),
            (256, 8, 2, True, False, 0, 1, True, True),
        ),
        resident="MANY > 4u ? 1 : 2",
        begins=True,
        cuda_only=True,
    )
)  # fmt: skip
MATMUL_SKINNY = declare(
    KernelDecl(
        "matmul_skinny",
        about=f"{_ABOUT[:-1]}, for few rows of halves.",
        grid=(
            "a group of 256 for each BESIDE * COLUMNS columns of each 16 rows of each matrix, for each of `parts` "
            "parts of the sum"
        ),
        args=(*reads(a="T", b="T", bias="f32"), *writes(c="T"), *_TILE_ARGS[4:]),
        headers=("prims", "mma"),
        variants={"T": ("f16", "bf16")},
        constants={
            "B_TRANSPOSED": False,
            "ACTIVATION": 0,
            "BIAS": 0,
            "A_OCTETS": False,
            "B_OCTETS": False,
            "C_QUADS": False,
            "WIDE": False,
            "ROWS": 16,
            "COLUMNS": 16,
            "BESIDE": 1,
            "AHEAD": 4,
        },
        trials=(
            (True, 2, 1, True, True, True, False, 4, 16, 1, 4),
            (False, 0, 0, True, True, True, True, 16, 64, 1, 3),
            (False, 0, 2, False, False, False, False, 8, 32, 4, 2),
        ),
        resident="2",
        unroll=True,
        new_compiler=True,
    )
)
MATMUL_DIRECT = declare(
    KernelDecl(
        "matmul_direct",
        about=f"{_ABOUT[:-1]}, for few rows, by matrices made in registers.",
        grid="a group of 128 for each COLUMNS columns of each 16 rows of each matrix",
        args=(
            *reads(a="TA", b="TA", bias="f32"),
            *writes(c="TA"),
            *uints("m", "n", "k", "batch", *PLACES, "bias_step"),
        ),
        headers=("prims", "mma"),
        variants={"AB": ("f32_f32", "f16_f16", "bf16_bf16"), "LAYOUT": ("n", "t")},
        constants={"ACTIVATION": 0, "BIAS": 0, "WIDE": False},
        trials=((2, 1, False), (0, 0, True)),
        threads=128,
        resident="TURNED ? 3 : 2",
        unroll=True,
        new_compiler=True,
    )
)
MATMUL_MMA = declare(
    KernelDecl(
        "matmul_mma",
        function="matmul_body",
        about=_ABOUT,
        grid=_GRID,
        args=_TILE_ARGS,
        headers=("prims", "mma"),
        variants={"ABM": TRIPLES, "TILE": ("s", "m", "l")},
        constants=MMA_CONSTANTS,
        trials=((False, True, 2, 1, True, True, True, False, False, 16, 2, 1, 1),),
        unroll=True,
        new_compiler=True,
    )
)


def _halves(stem: str, threads: int, tiles: tuple[str, ...], about: str) -> KernelDecl:
    return declare(
        KernelDecl(
            stem,
            function="matmul_body",
            about=f"{_ABOUT[:-1]}, for halves whose rows are whole units of 16 bytes, in {about} tiles.",
            grid=f"a group of {threads} for each tile of each matrix, for each of `parts` parts of the sum",
            args=(*reads(a="T", b="T", bias="f32"), *writes(c="T"), *_TILE_ARGS[4:]),
            headers=("prims", "mma"),
            variants={"T": ("f16", "bf16"), "TILE": tiles},
            constants={**_BEFORE, "C_QUADS": False, "WIDE": False},
            trials=((False, True, 2, 1, True, False), (True, False, 0, 0, False, True)),
            threads=threads,
            unroll=True,
            new_compiler=True,
        )
    )


MATMUL_HALVES = _halves("matmul_halves", 128, ("m",), "small")
MATMUL_HALVES_WIDE = _halves("matmul_halves_wide", 256, ("l",), "large")
MATMUL_PANELS = declare(
    KernelDecl(
        "matmul_panels",
        about="C (m, n) = activation(op(A) op(B) + bias) for halves, by instructions of warpgroups.",
        grid="clusters of two groups of 384, which stay for one pair of tiles after the other",
        args=(
            *maps(a=("rows_a", "columns_a", "high_a"), b=("rows_b", "columns_b", "high_b")),
            *reads(bias="f32"),
            *writes(c="T"),
            *uints("m", "n", "k", "rows_a", "columns_a", "high_a", "rows_b", "columns_b", "high_b"),
        ),
        headers=("prims", "mma", "map"),
        variants={"T": ("f16", "bf16")},
        constants={**_BEFORE, "C_UNITS": False, "WIDE": False, "SLICES": 4, "WARPGROUPS": 1},
        trials=(
            (False, True, 2, 1, True, False, 4, 1), (True, False, 0, 0, True, True, 4, 1),
            (False, False, 3, 2, False, False, 4, 1), (True, True, 4, 0, True, False, 3, 1),
        ),
        threads=384,
        specific=("WARPGROUPS", 1),
        cluster=2,
        cuda_only=True,
    )
)  # fmt: skip
MATMUL_INT = declare(
    KernelDecl(
        "matmul_int",
        about=(
            "C (batch, m, n) = op(A) op(B) + bias in integers or f64, batch = d0 * d1 * d2 matrices of "
            "strides a0 a1 a2, b0 b1 b2."
        ),
        grid="a group of 256 for each tile of 16 x 16 of each matrix",
        args=(*reads(a="T", b="T", bias="T"), *writes(c="T"), *uints("m", "n", "k", "batch", *PLACES)),
        headers=("body64",),
        variants={"T": ("i32", "i64", "f64")},
        constants={"A_TRANSPOSED": False, "B_TRANSPOSED": False, "HAS_BIAS": False},
        trials=((False, True, True),),
    )
)
