"""The file kernels of matrix products beyond the plain ones: matrix instructions, products by groups."""

from __future__ import annotations

from rlx.backends.gpu.decls import MATMUL
from rlx.backends.gpu.steps import KernelDecl, declare

MATMUL_MMA = declare(
    KernelDecl(
        "matmul_mma",
        MATMUL.args,
        defines=(
            (
                "ABM",
                (
                    "f32_f32_f16", "f32_f32_bf16", "f32_f16_f16", "f32_f16_bf16", "f32_bf16_bf16", "f16_f16_f16",
                    "bf16_bf16_bf16",
                ),
            ),
            ("TILE", ("s", "m", "l")),
        ),
    )
)  # fmt: skip
