"""The file kernels of matrix products beyond the plain ones: matrix instructions, products by groups."""

from __future__ import annotations

from rlx.backends.gpu.decls import MATMUL
from rlx.backends.gpu.steps import ArgDecl, KernelDecl, declare

_SPLITS = (
    "ABM",
    (
        "f32_f32_f16", "f32_f32_bf16", "f32_f16_f16", "f32_f16_bf16", "f32_bf16_bf16", "f16_f16_f16",
        "bf16_bf16_bf16",
    ),
)  # fmt: skip
MATMUL_MMA = declare(KernelDecl("matmul_mma", MATMUL.args, defines=(_SPLITS, ("TILE", ("s", "m", "l")))))
_GROUPED = (
    *(ArgDecl(name, "ptr", "r") for name in ("a", "b", "sizes")),
    ArgDecl("c", "ptr", "w"),
    *(ArgDecl(name, "u32") for name in ("rows", "n", "k", "experts")),
)
GROUPED = declare(KernelDecl("matmul_grouped", _GROUPED, defines=(MATMUL.defines[0], ("TILE", ("s", "l")))))
GROUPED_MMA = declare(KernelDecl("matmul_grouped_mma", _GROUPED, defines=(_SPLITS, ("TILE", ("s", "m")))))
GROUPED64 = declare(KernelDecl("matmul_grouped64", _GROUPED))
